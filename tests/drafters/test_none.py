"""No drafter: one token a pass, whatever the draft length is."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.core.drafts import Budget
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.none import NoDrafter
from paceline.generate import plugins
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.testing import check_drafter
from tests.rigged import markov, run
from tests.tiny_head_files import HEADS


@pytest.mark.parametrize("k", [0, 1, 8])
def test_every_round_yields_the_most_probable_token_alone(k: int) -> None:
    model = markov(8, 1)
    text: tuple[int, ...] = (1, 2)
    found = run(model, text, NoDrafter(), k=k, max_tokens=9)
    for round_ in found.rounds:
        best = int(model._law(text).argmax())
        assert (round_.tokens, round_.num_draft_tokens) == ((best,), 0)
        text += round_.tokens
    assert len(found.rounds) == 9


def test_it_proposes_nothing_whatever_it_was_told() -> None:
    session = NoDrafter().open(TargetView(TargetInfo("target", 8)), 20)
    for tokens in ((), (1, 2, 3), (1, 2, 3)):
        session.observe(Committed(tokens))
        draft = session.propose(Budget(5), SamplingWarp(SamplingParams()), SeededNoise(0))
        assert len(draft) == 0
    session.close()


def test_it_keeps_the_contract_of_drafters() -> None:
    check_drafter(NoDrafter(), text_alone=True)


def test_its_name_makes_it() -> None:
    assert isinstance(plugins.find("drafter", "none").make({}), NoDrafter)


def test_no_drafter_of_the_package_is_without_a_proof_of_its_output() -> None:
    """Heads are enumerated in `test_heads.py`, every other drafter in a file of its own."""
    folder = Path(__file__).parent
    points = plugins.points("drafter").values()
    ours = {point.name for point in points if point.value.startswith("paceline.")}
    for name in ours - HEADS.keys() - {"head"}:  # `head` hands over to the kind of its head
        file = folder / f"test_{name.replace('-', '_')}.py"
        assert "check_drafter(" in file.read_text(encoding="utf-8"), name
