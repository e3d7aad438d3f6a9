"""What plug-ins declare, and what holds where they are silent."""

from __future__ import annotations

from typing import Any

import pytest

from paceline.controllers.auto import AutoController
from paceline.core.traits import Traits, traits_of
from paceline.drafters.cascade import CascadeDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafters.universal import UniversalDrafter
from paceline.drafting.kinds import CHOSEN_CHAIN, CHOSEN_TREE
from paceline.errors import ContractViolation
from paceline.verifiers.block import BlockVerifier


class Silent:
    """Declares nothing."""


def test_one_that_declares_nothing_has_the_defaults() -> None:
    assert traits_of(Silent) == traits_of(Silent()) == traits_of(None) == Traits()


@pytest.mark.parametrize(
    ("plugin", "expected"),
    [
        (NgramDrafter, Traits(drafts=CHOSEN_CHAIN)),
        (ModelDrafter, Traits(needs_draft_model=True)),
        (UniversalDrafter, Traits(needs_draft_model=True, translates=True)),
        (SuffixDrafter(mode="tree"), Traits(default_verifier="tree", drafts=CHOSEN_TREE)),
        (
            CascadeDrafter((NgramDrafter(),)),
            Traits(
                combines=True, names=("ngram",), drafts=CHOSEN_CHAIN, greedy_drafts=CHOSEN_CHAIN
            ),
        ),
        (BlockVerifier, Traits(looks_ahead=True)),
        (AutoController(), Traits(uses_clock=True, follows_load=True)),
    ],
    ids=str,
)
def test_what_the_built_in_ones_declare(plugin: Any, expected: Traits) -> None:
    assert traits_of(plugin) == expected


def test_a_class_leaves_to_an_object_what_follows_from_its_settings() -> None:
    assert traits_of(SuffixDrafter) == Traits()
    assert traits_of(AutoController) == Traits(follows_load=True)
    assert traits_of(CascadeDrafter) == Traits(combines=True)


@pytest.mark.parametrize(
    ("trait", "value"),
    [
        ("needs_draft_model", "yes"),
        ("names", "ngram"),
        ("default_verifier", None),
        ("drafts", "single"),
    ],
)
def test_a_trait_of_another_type_breaks_the_contract(trait: str, value: Any) -> None:
    declared = type("Declares", (), {"name": "mine", trait: value})
    for plugin in (declared, declared()):
        with pytest.raises(ContractViolation, match=f"'mine' declares {trait} as"):
            traits_of(plugin)
