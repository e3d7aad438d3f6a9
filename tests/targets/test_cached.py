"""The cached target over a decoder whose logits can be said without running it.

`Toy` has one head that weighs all visible rows alike; the value of a row marks its token and its
position. So the logits behind a row are the mean over what it sees, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Auxiliary, Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.target import Need, TargetInfo
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput
from paceline.targets.attention import Pass, attend
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Output
from paceline.targets.state.kv import SLACK, KeyValueCache

VOCAB = 11

CHAIN = Draft((3, 1, 4, 1))
TREE = Draft((5, 9, 2, 6, 5, 3, 5), parents=(-1, -1, 0, 1, 1, 4, 0))


def mark(token: int, position: int) -> Tensor:
    """A row's value `[VOCAB]`."""
    value = torch.zeros(VOCAB, dtype=torch.float64)
    value[token] = 1.0 + position
    return value


class Toy:
    """See `targets.decoder.Decoder`. Keeps the passes that it was given."""

    device = torch.device("cpu")

    def __init__(self, dtype: torch.dtype = torch.float64, max_length: int | None = None) -> None:
        self.info = TargetInfo("toy", VOCAB, max_length)
        self.dtype = dtype
        self.passes: list[Pass] = []
        self.fail = False

    def state(self, capacity: int) -> KeyValueCache:
        return KeyValueCache(capacity)

    def run(self, batch: Pass) -> Output:
        self.passes.append(batch)
        pairs = zip(batch.tokens.tolist(), batch.positions.tolist(), strict=True)
        values = torch.stack([mark(*pair) for pair in pairs])[None]
        nothing = torch.zeros(1, len(batch.tokens), 2, dtype=torch.float64)
        rows = attend(0, nothing, nothing, values, batch, scale=1.0)[:, 0]
        if self.fail:
            raise RuntimeError("out of memory, say")
        return Output(rows[batch.scored].to(self.dtype))

    def text_head(self) -> None:
        pass


def behind(tokens: Sequence[int]) -> Tensor:
    """The oracle: the logits `[VOCAB]` behind a sequence."""
    return torch.stack([mark(token, i) for i, token in enumerate(tokens)]).mean(dim=0)


def rows_behind(text: Sequence[int], draft: Draft) -> Tensor:
    paths = [(), *(draft.path(node) for node in range(len(draft)))]
    return torch.stack([behind([*text, *(draft.tokens[i] for i in path)]) for path in paths])


def assert_rows(found: Tensor, text: Sequence[int], draft: Draft) -> None:
    torch.testing.assert_close(found, rows_behind(text, draft), rtol=1e-12, atol=1e-12)


TEXT = (2, 7, 1, 8, 2, 8, 1)

MODES: dict[str, dict[str, Any]] = {
    "plain": {},
    "prefill in ones": {"prefill_rows": 1},
    "prefill in threes": {"prefill_rows": 3},
    "fixed rows": {"fixed_rows": 8},
    "fixed rows and keys": {"fixed_rows": 8, "fixed_keys": 16},
}


def branching(mode: str) -> Draft:
    """A tree where the mode takes one; invariant mode takes chains alone."""
    return CHAIN if "fixed_rows" in MODES[mode] else TREE


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("length", [1, 2, 7])
def test_scores_are_those_of_every_path(mode: str, length: int) -> None:
    target, text = CachedTarget(Toy(), **MODES[mode]), TEXT[:length]
    slot = target.open(20)
    prefill(target, slot, text[:-1])
    assert target.length(slot) == length - 1
    for draft in (Draft(), CHAIN, branching(mode), branching(mode)):
        (scores,) = target.score([Work(slot, [text[-1]], draft)])
        assert_rows(scores.logits, text, draft)
        assert target.length(slot) == length - 1


@pytest.mark.parametrize("mode", MODES)
def test_rounds_of_scores_commits_and_rollbacks(mode: str) -> None:
    target, text = CachedTarget(Toy(), **MODES[mode]), list(TEXT)
    slot = target.open(200)
    prefill(target, slot, text[:-1])
    for number in range(30):
        draft = (CHAIN, branching(mode), Draft())[number % 3]
        path = draft.path(number % len(draft)) if len(draft) else ()
        (scores,) = target.score([Work(slot, [text[-1]], draft)])
        assert_rows(scores.logits, text, draft)
        target.commit(slot, path)
        text += [*(draft.tokens[node] for node in path), number % VOCAB]
        assert target.length(slot) == len(text) - 1
        if number % 5 == 4:
            target.rollback(slot, len(text) - 4)
            text = [*text[:-4], (number + 3) % VOCAB]


@pytest.mark.parametrize("mode", MODES)
def test_one_pass_serves_slots_of_all_kinds(mode: str) -> None:
    decoder = Toy()
    target = CachedTarget(decoder, **MODES[mode])
    cases = [
        (TEXT, branching(mode)),
        (TEXT[:1], Draft()),
        (TEXT[:3], CHAIN),
        (TEXT[2:], Draft((1,))),
    ]
    slots = [target.open(20) for _ in cases]
    for slot, (text, _) in zip(slots, cases, strict=True):
        prefill(target, slot, text[:-1])
    decoder.passes.clear()
    work = [Work(slot, [text[-1]], draft) for slot, (text, draft) in zip(slots, cases, strict=True)]
    for scores, (text, draft) in zip(target.score(work), cases, strict=True):
        assert_rows(scores.logits, text, draft)
    # Fixed shapes hold for one sequence a pass.
    assert len(decoder.passes) == (len(cases) if target.fixed_rows else 1)


def test_auxiliary_rows_see_what_they_say_and_are_never_kept() -> None:
    target = CachedTarget(Toy())
    slot = target.open(40)
    prefill(target, slot, TEXT[:-1])
    # Behind the root: one row alone, one behind it, and one behind the first node of the tree.
    visible = torch.zeros(3, 1 + len(TREE) + 3, dtype=torch.bool)
    visible[:, 0] = visible[2, 1] = True
    visible[:, -3:] = torch.tensor([[1, 0, 0], [1, 1, 0], [0, 0, 1]], dtype=torch.bool)
    draft = replace(TREE, aux=Auxiliary((10, 0, 6), (1, 2, 2), visible))
    rows = target.score([Work(slot, [TEXT[-1]], draft), Work(target.open(9), [4], CHAIN)])[0].logits
    assert len(rows) == draft.num_rows
    assert_rows(rows[:-3], TEXT, TREE)
    for row, tokens in zip(rows[-3:], [(10,), (10, 0), (5, 6)], strict=True):
        torch.testing.assert_close(row, behind([*TEXT, *tokens]))
    target.commit(slot, (1, 4, 5))
    kept = (*TEXT, 9, 5, 3, 8)
    assert_rows(target.score([Work(slot, [8], CHAIN)])[0].logits, kept, CHAIN)


def test_what_each_mode_gives_to_drafters() -> None:
    assert CachedTarget(Toy()).info.gives == {Need.LOGITS, Need.TREE, Need.AUXILIARY}
    assert CachedTarget(Toy(), fixed_rows=8).info.gives == {Need.LOGITS}


def test_positions_are_depths_and_only_wanted_rows_are_scored() -> None:
    decoder = Toy()
    target = CachedTarget(decoder, prefill_rows=4)
    slots = [target.open(20), target.open(20)]
    prefill(target, slots[0], TEXT[:6])
    assert [batch.positions.tolist() for batch in decoder.passes] == [[0, 1, 2, 3], [4, 5]]
    assert all(len(batch.scored) == 0 for batch in decoder.passes)
    target.score([Work(slots[0], [4], TREE), Work(slots[1], [4], Draft((1, 2)))])
    batch = decoder.passes[-1]
    assert batch.tokens.tolist() == [4, *TREE.tokens, 4, 1, 2]
    assert batch.positions.tolist() == [6, 7, 7, 8, 8, 8, 9, 8, 0, 1, 2]
    assert batch.scored.tolist() == list(range(11))


def test_fixed_rows_pad_every_scoring_pass_to_one_shape() -> None:
    decoder = Toy()
    target = CachedTarget(decoder, fixed_rows=8, fixed_keys=16)
    slot = target.open(40)
    prefill(target, slot, TEXT)
    decoder.passes.clear()
    for draft in (Draft(), CHAIN, Draft((1,) * 7)):
        target.score([Work(slot, [5], draft)])
        target.commit(slot, range(len(draft)))
    assert [len(batch.tokens) for batch in decoder.passes] == [8, 8, 8]
    assert [batch.segments[0].end for batch in decoder.passes] == [16, 16, 32]
    # The head as well: its product of one row and of five would round differently.
    assert [len(batch.scored) for batch in decoder.passes] == [8, 8, 8]
    assert target.info.max_draft_tokens == 7
    with pytest.raises(ContractViolation, match="Draft at most 7 tokens"):
        target.score([Work(slot, [5], Draft((1,) * 8))])
    with pytest.raises(InvalidInput, match="invariant mode takes drafts that are chains"):
        target.score([Work(slot, [5], TREE)])


def test_padding_beyond_the_spare_rows_fits_at_the_very_end() -> None:
    target = CachedTarget(Toy(), fixed_rows=3 * SLACK, fixed_keys=16)
    slot = target.open(len(TEXT) + 1)
    prefill(target, slot, TEXT[:-1])
    draft = Draft((4,))
    assert_rows(target.score([Work(slot, [TEXT[-1]], draft)])[0].logits, TEXT, draft)
    target.commit(slot, (0,))
    assert target.length(slot) == len(TEXT) + 1


def test_a_draft_with_more_nodes_than_spare_rows_fits_at_the_very_end() -> None:
    nodes = 3 * SLACK
    wide = Draft(tuple(i % VOCAB for i in range(nodes)), parents=(-1,) * nodes)
    target = CachedTarget(Toy())
    slot = target.open(len(TEXT) + 1)
    prefill(target, slot, TEXT[:-1])
    assert_rows(target.score([Work(slot, [TEXT[-1]], wide)])[0].logits, TEXT, wide)
    target.commit(slot, (nodes - 1,))
    target.rollback(slot, 4)
    (scores,) = target.score([Work(slot, [9], Draft(CHAIN.tokens[:3]))])
    assert_rows(scores.logits, (*TEXT[:4], 9), Draft(CHAIN.tokens[:3]))


def test_a_pass_that_fails_leaves_the_slot_as_it_was() -> None:
    decoder = Toy()
    target = CachedTarget(decoder, prefill_rows=2)
    slot = target.open(20)
    prefill(target, slot, TEXT[:4])
    target.score([Work(slot, [TEXT[4]], CHAIN)])
    decoder.fail = True
    with pytest.raises(RuntimeError, match="out of memory"):
        target.score([Work(slot, [TEXT[4]], TREE)])
    with pytest.raises(ContractViolation, match="commit without a score"):
        target.commit(slot, ())
    with pytest.raises(RuntimeError, match="out of memory"):
        prefill(target, slot, TEXT[4:])
    assert target.length(slot) == 4
    decoder.fail = False
    assert_rows(target.score([Work(slot, [TEXT[4]], TREE)])[0].logits, TEXT[:5], TREE)


@pytest.mark.parametrize(
    ("given", "handed_out"),
    [
        (torch.bfloat16, torch.float32),
        (torch.float16, torch.float32),
        (torch.float32, torch.float32),
        (torch.float64, torch.float64),
    ],
)
def test_logits_are_widened_and_never_narrowed(given: torch.dtype, handed_out: torch.dtype) -> None:
    target = CachedTarget(Toy(given))
    (scores,) = target.score([Work(target.open(9), [3], CHAIN)])
    assert scores.logits.dtype == handed_out


def test_limits_are_kept_to_the_token() -> None:
    target = CachedTarget(Toy(max_length=9))
    with pytest.raises(ContextOverflow, match=r"toy takes 9 tokens.*10 were asked for"):
        target.open(10)
    slot = target.open(9)
    with pytest.raises(ContextOverflow, match="opened for 9 tokens and would hold 10"):
        prefill(target, slot, (1,) * 10)
    prefill(target, slot, TEXT)
    with pytest.raises(ContextOverflow, match="opened for 9 tokens and would hold 10"):
        target.score([Work(slot, [1], Draft((1, 1)))])
    assert target.length(slot) == 7
    assert_rows(target.score([Work(slot, [1], Draft((4,)))])[0].logits, (*TEXT, 1), Draft((4,)))
    target.commit(slot, (0,))
    assert target.length(slot) == 9


def test_misuse_is_named() -> None:
    target = CachedTarget(Toy())
    slot = target.open(20)
    with pytest.raises(ContractViolation, match="commit without a score"):
        target.commit(slot, ())
    prefill(target, slot, TEXT)
    target.score([Work(slot, [1], TREE)])
    for path in ((1, 2), (3,), (0, 0), (7,), (-1,), (1, 3, 4)):
        with pytest.raises(ContractViolation, match="commit takes a path from the root"):
            target.commit(slot, path)
    target.commit(slot, (1, 4, 5))
    with pytest.raises(ContractViolation, match="commit without a score"):
        target.commit(slot, ())
    for length in (12, -1):
        with pytest.raises(ContractViolation, match="the slot has 11 tokens"):
            target.rollback(slot, length)
    target.score([Work(slot, [1], TREE)])
    target.rollback(slot, 11)
    with pytest.raises(ContractViolation, match="commit without a score"):
        target.commit(slot, ())


def test_a_closed_slot_holds_nothing() -> None:
    target = CachedTarget(Toy())
    slot = target.open(20)
    prefill(target, slot, TEXT)
    target.close(slot)
    assert slot.state.layers == []
    assert target.length(slot) == 0
    target.close(slot)
    with pytest.raises(ContextOverflow):
        prefill(target, slot, TEXT)
