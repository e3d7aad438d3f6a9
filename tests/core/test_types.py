"""The values that travel: their shapes, their limits, and that nothing can change them."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.core.drafts import ROOT, Auxiliary, Draft
from paceline.core.sampling import LogitBias, SamplingParams
from paceline.errors import InvalidInput, PacelineError, UnknownName

trees = st.lists(st.integers(-1, 6), max_size=8).map(
    lambda parents: Draft(
        tuple(range(len(parents))),
        parents=tuple(min(parent, i - 1) for i, parent in enumerate(parents)),
    )
)


@given(trees)
def test_paths_children_and_depths_agree(draft: Draft) -> None:
    assert draft.parents is not None
    for node, parent in enumerate(draft.parents):
        path = draft.path(node)
        assert path[-1] == node
        assert path[:-1] == (() if parent == ROOT else draft.path(parent))
        assert draft.is_path(path)
        assert node in draft.children(parent)
        assert not draft.is_path((*path, node))
    lengths = [len(draft.path(node)) for node in range(len(draft))]
    assert draft.max_path_length == max(lengths, default=0)
    assert sum(len(draft.children(node)) for node in range(ROOT, len(draft))) == len(draft)
    assert draft.is_chain == (draft.max_path_length == len(draft))
    assert draft.is_path(())
    assert not draft.is_path((len(draft),))


def test_a_draft_without_parents_is_a_chain() -> None:
    draft = Draft((5, 6, 7))
    assert draft.parents == (-1, 0, 1)
    assert draft.law(1) is None
    assert Draft().max_path_length == len(Draft()) == 0


@pytest.mark.parametrize(
    "arguments",
    [
        {"tokens": (1, 2), "parents": (-1,)},
        {"tokens": (1, 2), "parents": (-1, 1)},
        {"tokens": (1, 2), "parents": (0, -1)},
        {"tokens": (1, 2), "parents": (-1, -2)},
        {"tokens": (1, 2), "probs": (None,)},
        {"tokens": (1,), "probs": (torch.ones(2), torch.ones(2))},
    ],
)
def test_a_draft_that_is_no_tree_is_refused(arguments: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput):
        Draft(**arguments)


@pytest.mark.parametrize(
    "options",
    [
        {"temperature": -0.1},
        {"temperature": math.nan},
        {"temperature": math.inf},
        {"temperature": "warm"},
        {"temperature": None},
        {"temperature": "1"},
        {"temperature": True},
        {"top_k": -1},
        {"top_k": 2.0},
        {"top_k": True},
        {"top_p": 0.0},
        {"top_p": 1.01},
        {"min_p": -0.1},
        {"min_p": 1.1},
        {"repetition_penalty": 0.0},
        {"repetition_penalty": -1.0},
        {"presence_penalty": math.nan},
        {"frequency_penalty": math.inf},
        {"logit_bias": {1: math.nan}},
        {"logit_bias": {1: math.inf}},
        {"logit_bias": {1: "much"}},
        {"logit_bias": {1.5: 2.0}},
        {"logit_bias": [1]},
        {"logit_bias": None},
        {"logit_bias": {1: 10**400}},
        {"temperature": 10**400},
        {"allowed_token_ids": []},
        {"allowed_token_ids": 3},
        {"allowed_token_ids": ["a"]},
        {"banned_token_ids": 3},
        {"banned_token_ids": [1.5]},
        {"seed": -1},
        {"seed": 2**64},
        {"seed": 0.5},
    ],
    ids=str,
)
def test_options_outside_their_range_are_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(InvalidInput, match=name):
        SamplingParams(**options)


def test_options_are_greedy_by_default_and_cannot_change() -> None:
    params = SamplingParams()
    assert params.is_greedy
    assert not params.has_penalties
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.temperature = 1.0  # type: ignore[misc]
    bias = {1: 2.0}
    biased = SamplingParams(logit_bias=bias)
    bias[1] = 9.0
    assert biased.logit_bias == {1: 2.0}
    with pytest.raises(TypeError):
        biased.logit_bias[1] = 3.0  # type: ignore[index]


def test_options_copy_pickle_hash_and_compare() -> None:
    params = SamplingParams(
        temperature=0.5, logit_bias={1: -math.inf, 2: 3}, banned_token_ids=frozenset({4})
    )
    for twin in (copy.deepcopy(params), pickle.loads(pickle.dumps(params))):  # noqa: S301
        assert twin == params
        assert hash(twin) == hash(params)
    assert params != dataclasses.replace(params, logit_bias={1: -math.inf})
    assert repr(LogitBias({1: 2})) == "{1: 2.0}"


@pytest.mark.parametrize("name", ["repetition_penalty", "presence_penalty", "frequency_penalty"])
def test_any_penalty_counts_as_one(name: str) -> None:
    assert SamplingParams(**{name: 0.5}).has_penalties


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    error = UnknownName.among("drafter", "ngrm", ["none", "ngram"])
    assert str(error) == "unknown drafter 'ngrm'; did you mean 'ngram'? Known: ngram, none"
    assert isinstance(error, PacelineError | LookupError)
    assert str(UnknownName.among("rule", "zzz", [])) == "unknown rule 'zzz'. Known: none"


class TestAuxiliaryRows:
    def test_they_add_to_the_rows_of_a_pass_and_not_to_the_draft(self) -> None:
        aux = Auxiliary((4, 5), (1, 2), torch.ones(2, 1 + 1 + 2, dtype=torch.bool))
        draft = Draft((3,), aux=aux)
        assert (len(draft), draft.num_rows, draft.max_path_length) == (1, 4, 1)

    @pytest.mark.parametrize(
        ("positions", "visible", "what"),
        [
            ((1,), torch.ones(2, 4), "one position"),
            ((1, 2), torch.ones(1, 4), "one position"),
            ((1, -1), torch.ones(2, 4), "count from the root"),
            ((1, 2), torch.zeros(2, 4), "see itself"),
            ((1, 2), torch.ones(2, 5), "needs 4 columns"),
        ],
    )
    def test_rows_that_do_not_fit_are_refused(
        self, positions: tuple[int, ...], visible: torch.Tensor, what: str
    ) -> None:
        with pytest.raises(InvalidInput, match=what):
            Draft((3,), aux=Auxiliary((4, 5), positions, visible.bool()))


def test_one_confidence_a_token_or_none() -> None:
    assert Draft((3, 4), confidence=(0.5, 1.0)).confidence == (0.5, 1.0)
    with pytest.raises(InvalidInput, match="confidence"):
        Draft((3, 4), confidence=(0.5,))
