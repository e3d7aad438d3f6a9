"""Lookahead decoding, its window against columns that are run as sequences of their own."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch

from paceline.core.drafts import Budget, Draft, Scheme
from paceline.core.protocols import Target, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafters.lookahead import LookaheadDrafter, NgramPool, Window, merge
from paceline.errors import InvalidInput
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.decoder import HFDecoder
from paceline.testing import check_drafter
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.naive import NaiveVerifier
from paceline.verifiers.rrsw import RrswVerifier
from paceline.verifiers.traversal import TraversalVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.observed import Watched, argmax_behind, long_memory, tokens_on
from tests.rigged import assert_alone_as_together, assert_same_law, law_of_run, markov, run
from tests.tiny_models import build, lean_target, tiny, tokens_of

RULE = TreeVerifier()
WARM = SamplingParams(temperature=1.0)
COUNT = 40


@pytest.mark.parametrize(
    "drafter",
    [
        LookaheadDrafter(),
        LookaheadDrafter(window=7, ngram=5, guesses=7),
        LookaheadDrafter(window=2, ngram=3, guesses=2, pool_from_text=True),
        LookaheadDrafter(window=3, ngram=2),
        LookaheadDrafter(window=1, ngram=4, guesses=1),
    ],
)
def test_it_keeps_the_contract(drafter: LookaheadDrafter) -> None:
    check_drafter(drafter, verifier=RULE)


# ---------------------------------------------------------------- the window


class Levels:
    """The method level by level, as its authors' figure 4 shows it, every row a plain call.

    Level 0 lacks the root here, so that it has one token less than the levels above it.
    """

    def __init__(self, target: Target, start: list[int], window: int, ngram: int) -> None:
        self.target, self.window, self.ngram = target, window, ngram
        self.levels = [start]
        self.pool: dict[int, list[tuple[int, ...]]] = {}

    def step(self, text: tuple[int, ...], guesses: int) -> None:
        low, *high = self.levels
        columns = len(high[0]) if high else len(low) + 1
        sequences = [(*text, *low[:i], *(level[i] for level in high)) for i in range(columns)]
        new = [argmax_behind(self.target, sequence) for sequence in sequences]
        if len(self.levels) == self.ngram - 1:
            for i in range(columns):
                key = text[-1] if i == 0 else low[i - 1]
                gram = (*(level[i] for level in high), new[i])
                known = [old for old in self.pool.get(key, []) if old != gram]
                self.pool[key] = [*known, gram][-guesses:]
            self.levels = [*high, new]
            self.levels[0] = self.levels[0][1:]
        else:
            self.levels = [level[1:] for level in [*self.levels, new]]


@pytest.mark.parametrize("where", ["table", "lean", "hf"])
@pytest.mark.parametrize(
    ("window", "ngram", "guesses"), [(7, 5, 7), (3, 3, 2), (1, 4, 1), (4, 2, 3)]
)
def test_the_pool_is_that_of_columns_run_one_by_one(
    where: str, window: int, ngram: int, guesses: int
) -> None:
    targets: dict[str, Any] = {
        "table": lambda: long_memory(5),
        "lean": lambda: lean_target(tiny("llama")),
        "hf": lambda: CachedTarget(HFDecoder(tiny("gpt2"))),
    }
    target = targets[where]()
    prompt = (1, 2, 3, 4, 1) if where == "table" else tokens_of(6)
    watched = Watched(
        LookaheadDrafter(window=window, ngram=ngram, guesses=guesses, pool_from_text=False)
    )
    run(target, prompt, watched, k=ngram, verifier=RULE, max_tokens=COUNT)
    aux = watched.steps[0].draft.aux
    start = [] if aux is None else list(aux.tokens)
    assert len(start) == window + ngram - 3
    assert set(start) <= set(prompt)
    plain = Levels(target, start, window, ngram)
    compared = 0
    for step in watched.steps:
        known = plain.pool.get(step.text[-1], [])
        left = len(prompt) + COUNT - len(step.text)
        paths = {gram[:length] for gram in known for length in range(1, min(len(gram) + 1, left))}
        assert {tokens_on(step.draft, node) for node in range(len(step.draft))} == paths
        if left < window + ngram - 3:
            break  # from here on the window no longer fits
        plain.step(step.text, guesses)
        compared += bool(paths)
    assert compared >= 5, "hardly anything was drafted"


def test_rows_see_level_0_up_to_their_column_and_their_own_column() -> None:
    window = Window((5, 6), width=3, ngram=4)
    window.columns = [[10, 11, 12], [20, 21, 22], [30, 31, 32]]
    aux = window.rows(num_nodes=2)
    assert aux is not None
    assert aux.tokens == (20, 30, 11, 21, 31, 12, 22, 32)
    assert aux.positions == (1, 2, 1, 2, 3, 2, 3, 4)
    assert not aux.visible[:, 1:3].any(), "nothing of the window sees the guesses"
    assert aux.visible[:, 0].all(), "all of it sees the root"
    seen = [
        [token for token, there in zip(aux.tokens, row, strict=True) if there]
        for row in aux.visible[:, 3:].tolist()
    ]
    assert seen == [
        [20],
        [20, 30],
        [11],
        [20, 21],
        [20, 30, 31],
        [11, 12],
        [20, 21, 22],
        [20, 30, 31, 32],
    ]


def test_level_0_starts_from_tokens_all_over_the_prompt_the_same_each_time() -> None:
    prompt = range(100)
    first, second = (Window(prompt, width=7, ngram=5).columns for _ in range(2))
    assert first == second
    places = sorted(column[0] for column in first)
    assert len(places) == 10
    assert all(low != high for low, high in pairwise(places))
    assert places[0] < 20
    assert places[-1] >= 80


@pytest.mark.parametrize("length", range(1, 13))
def test_no_row_stands_beyond_the_room(length: int) -> None:
    """And what is left of the window goes on, column by column."""
    target, prompt = long_memory(4), (0,) * length
    session = LookaheadDrafter(window=4, ngram=4, pool_from_text=False).open(
        TargetView(target.info), 13
    )
    session.observe(Committed(prompt))
    warp = SamplingWarp(SamplingParams())
    for used in range(length, 13):
        draft = session.propose(Budget(4), warp, SeededNoise(0))
        places = [0] if draft.aux is None else draft.aux.positions
        assert used + max(places) <= 13
        # Up to the last place, if the window is long enough.
        if used == length:
            assert max(places) == min(13 - used, 5)
        logits = torch.randn(draft.num_rows, 4, generator=torch.Generator().manual_seed(used))
        session.observe(Committed((1,), draft, (), logits))


def test_a_round_without_the_window_leaves_it_as_it_is() -> None:
    session = LookaheadDrafter(window=2, ngram=3).open(TargetView(long_memory(4).info), 50)
    session.observe(Committed((0, 1, 2)))
    warp = SamplingWarp(SamplingParams())
    before = session.propose(Budget(4), warp, SeededNoise(0)).aux
    session.observe(Committed((3,), Draft((1,)), (), torch.eye(4)[:2]))
    after = session.propose(Budget(4), warp, SeededNoise(0)).aux
    assert before is not None
    assert after is not None
    assert before.tokens == after.tokens


# ---------------------------------------------------------------- pool and tree


def test_the_pool_keeps_the_newest_of_each_key() -> None:
    pool = NgramPool(2)
    pool.extend([(1, 2), (1, 3), (2, 9), (1, 2), (1, 4)])
    assert pool.after(1) == [(4,), (2,)]
    assert pool.after(2) == [(9,)]
    assert pool.after(3) == []


def test_guesses_are_merged_into_a_tree_within_the_budget() -> None:
    guesses = [(5, 7, 8), (5, 9), (6, 7), (5, 7, 1)]
    assert merge(guesses, 3, None) == ((5, 7, 8, 9, 6, 7, 1), (-1, 0, 1, 0, -1, 4, 1))
    assert merge(guesses, 1, None) == ((5, 6), (-1, -1))
    assert merge(guesses, 3, 4) == ((5, 7, 8, 9), (-1, 0, 1, 0))
    assert merge(guesses, 3, 0) == ((), ())


def test_n_grams_of_the_text_are_drafted_at_once_if_asked_for() -> None:
    target, prompt = long_memory(6), (1, 2, 3, 4, 5, 1, 2, 0, 1)
    for from_text, expected in ((True, {(2, 3, 4), (2, 0, 1)}), (False, set())):
        session = LookaheadDrafter(ngram=4, pool_from_text=from_text).open(
            TargetView(target.info), 50
        )
        for tokens in (prompt[:3], prompt[3:7], prompt[7:]):
            session.observe(Committed(tokens))
        draft = session.propose(Budget(4), SamplingWarp(SamplingParams()), SeededNoise(0))
        found = {tokens_on(draft, node) for node in range(len(draft))}
        assert {path for path in found if len(path) == 3} == expected
        assert draft.scheme is Scheme.CHOSEN


@pytest.mark.parametrize("option", ["window", "ngram", "guesses"])
def test_settings_that_make_no_sense_are_refused(option: str) -> None:
    with pytest.raises(InvalidInput, match=f"{option} must be"):
        LookaheadDrafter(**{option: 0})


# ---------------------------------------------------------------- what comes out


@pytest.mark.parametrize("family", ["llama", "gpt2", "mistral-window", "gemma3"])
@pytest.mark.parametrize("k", [1, 4])
@pytest.mark.parametrize("from_text", [False, True])
def test_greedy_tokens_are_those_of_plain_decoding(family: str, k: int, from_text: bool) -> None:
    target = CachedTarget(HFDecoder(tiny(family)))
    drafter = LookaheadDrafter(window=4, ngram=4, pool_from_text=from_text)
    plain = run(target, tokens_of(7), max_tokens=40)
    found = run(target, tokens_of(7), drafter, k=k, verifier=RULE, max_tokens=40)
    assert found.tokens == plain.tokens
    assert sum(r.num_draft_tokens for r in found.rounds) > 0


@pytest.mark.parametrize("place", ["lean", "hf"])
def test_it_runs_to_the_last_place_of_the_context(place: str) -> None:
    model = (
        build("gpt2", n_positions=40)
        if place == "hf"
        else build("llama", max_position_embeddings=40)
    )
    decoder = (
        HFDecoder(model)
        if place == "hf"
        else from_weights(model.state_dict(), model.config, dtype=torch.float32)
    )
    target = CachedTarget(decoder)
    for length in (1, 30, 38):
        prompt = tokens_of(length)
        found = run(
            target, prompt, LookaheadDrafter(window=7, ngram=5), k=4, verifier=RULE, max_tokens=None
        )
        assert found.tokens == run(target, prompt, max_tokens=None).tokens
        assert len(found.tokens) == 40 - length


@pytest.mark.parametrize("params", [SamplingParams(), WARM])
def test_sequences_of_a_batch_get_what_they_get_alone(params: SamplingParams) -> None:
    target = lean_target(tiny("llama"))
    drafter = LookaheadDrafter(window=3, ngram=4, guesses=3, pool_from_text=True)
    prompts = [tokens_of(4), tokens_of(9, 1) * 2, tokens_of(1, 2)]
    assert_alone_as_together(target, prompts, drafter, k=4, verifier=RULE, params=params)


RULES = [RULE, NaiveVerifier(), RrswVerifier(), TraversalVerifier(), CouplingVerifier()]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
@pytest.mark.parametrize("from_text", [False, True])
def test_the_joint_law_is_that_of_plain_decoding(rule: Verifier, from_text: bool) -> None:
    target, prompt = markov(3, 3), (0, 1, 0, 2, 0)
    watched = Watched(LookaheadDrafter(window=3, ngram=3, pool_from_text=from_text))
    plain = law_of_run(target, prompt, None, max_tokens=5, params=WARM)
    found = law_of_run(target, prompt, watched, k=2, verifier=rule, max_tokens=5, params=WARM)
    assert_same_law(found, plain)
    assert any(step.path for step in watched.steps), "nothing was ever accepted"
