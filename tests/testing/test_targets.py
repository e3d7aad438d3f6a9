"""`check_target` passes what is right and catches each broken rule, planted here one by one."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.protocols import Target, Work
from paceline.core.target import Scores, TargetInfo
from paceline.errors import ContractViolation, InvalidInput
from paceline.kernels.packing import Storage
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.invariant import make_invariant
from paceline.testing import TargetRule, check_target
from paceline.testing.table import TableSlot, TableTarget
from tests.tiny_models import build

VOCAB = 13


def law(tokens: tuple[int, ...]) -> Tensor:
    """Depends on every token and on its place; deterministic."""
    seed = sum((token + 1) * 31 ** (i % 7) * (i + 1) for i, token in enumerate(tokens))
    return torch.rand(VOCAB, generator=torch.Generator().manual_seed(seed)).softmax(dim=-1)


# ---------------------------------------------------------------- what is right


@pytest.mark.parametrize(
    "target",
    [
        TableTarget(torch.tensor([0.75, 0.25])),
        TableTarget(torch.eye(5, dtype=torch.float64).roll(1, 0)),
        TableTarget(law, vocab_size=VOCAB),
        TableTarget(law, vocab_size=VOCAB, max_length=24),
        TableTarget(law, vocab_size=VOCAB, max_length=7),
        TableTarget(torch.ones(1)),
    ],
    ids=["constant", "certain", "function", "limited", "shortest", "one token"],
)
def test_tables_pass(target: Target) -> None:
    check_target(target)


@pytest.mark.parametrize(
    ("family", "options"),
    [
        ("llama", {}),
        ("mistral-window", {}),
        ("gemma2", {"prefill_rows": 2}),
    ],
)
def test_models_pass(family: str, options: dict[str, int]) -> None:
    check_target(CachedTarget(HFDecoder(build(family)), **options))


@pytest.mark.parametrize("rows", [1, 4])
def test_models_in_a_fixed_shape_pass_with_chains(rows: int) -> None:
    target = CachedTarget(HFDecoder(build("mistral-window")), fixed_rows=rows, fixed_keys=8)
    check_target(target, trees=False)
    if rows > 1:
        with pytest.raises(ContractViolation, match="invariant mode takes drafts that are chains"):
            check_target(target)


def test_a_model_with_learned_positions_passes_to_its_last_token() -> None:
    check_target(CachedTarget(HFDecoder(build("gpt2", n_positions=24))))


def dense(**options: Any) -> DenseDecoder:
    """A context of 40 tokens, which the checks fill to the last one."""
    model = build("llama", max_position_embeddings=40)
    return from_weights(model.state_dict(), model.config, dtype=torch.float32, **options)


@pytest.mark.parametrize(
    ("storage", "tolerance"), [("plain", 1e-4), ("packed", 1e-4), ("int8", 0.05), ("int4", 0.05)]
)
def test_lean_models_pass_in_every_storage(storage: Storage, tolerance: float) -> None:
    """Weights in 8 and 4 bits are multiplied in bfloat16."""
    target = CachedTarget(dense(storage=storage, head_storage=storage))
    check_target(target, tolerance=tolerance)


def test_lean_models_with_a_cut_head_pass() -> None:
    check_target(CachedTarget(dense(head_ids=torch.arange(0, 64, 3))))


def test_lean_models_in_invariant_mode_pass_with_chains() -> None:
    target = make_invariant(dense(storage="packed", head_storage="packed"))
    check_target(target, trees=False)


def test_invariant_mode_in_bfloat16_passes() -> None:
    target = make_invariant(HFDecoder(build("llama").bfloat16()))
    prompts = [(5, 9, 31), (40, 2, 17, 17, 8)]
    check_target(target, prompts, tolerance=0.02, trees=False)


# ---------------------------------------------------------------- what is wrong


class Wrong(TableTarget):
    """A table with one fault, in a subclass."""

    def __init__(self, max_length: int | None = None) -> None:
        super().__init__(law, vocab_size=VOCAB, max_length=max_length)


class OddInfo(Wrong):
    def __init__(self, info: Any) -> None:
        super().__init__()
        self.info = info


class FewScores(Wrong):
    def score(self, work: Sequence[Work]) -> list[Scores]:
        return super().score(work)[:1]


class Reshaped(Wrong):
    """The logits go through a function."""

    function = staticmethod(lambda logits: logits)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        return [Scores(self.function(scores.logits)) for scores in super().score(work)]


class NoRootRow(Reshaped):
    function = staticmethod(lambda logits: logits[1:])


class HalfPrecision(Reshaped):
    function = staticmethod(lambda logits: logits.half())


class NotANumber(Reshaped):
    function = staticmethod(lambda logits: logits.index_fill(1, torch.tensor([3]), torch.nan))


class AList(Reshaped):
    function = staticmethod(lambda logits: logits.tolist())


class OneBuffer(Wrong):
    """Hands out views of a buffer that the next pass overwrites."""

    def __init__(self) -> None:
        super().__init__()
        self.buffer = torch.zeros(200, VOCAB, dtype=torch.float64)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        rows, found = 0, []
        for scores in super().score(work):
            view = self.buffer[rows : rows + len(scores.logits)]
            found.append(Scores(view.copy_(scores.logits)))
            rows += len(scores.logits)
        return found


class Moody(Wrong):
    """The same pass does not give the same rows."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.passes += 1
        return [Scores(s.logits + 0.01 * (self.passes % 7)) for s in super().score(work)]


class ScoreCaches(Wrong):
    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = super().score(work)
        for item in work:
            item.slot.tokens += item.draft.tokens
        return found


class OldLength(Wrong):
    def length(self, slot: TableSlot) -> int:
        return max(0, len(slot.tokens) - 1)


class Chunks(Wrong):
    """What becomes of a chunk of a prompt is another's business."""

    def __init__(self) -> None:
        super().__init__()
        self.chunks: set[int] = set()

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.chunks = {id(item.slot) for item in work if not item.logits}
        return super().score(work)

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        assert slot.scored is not None
        if id(slot) in self.chunks:
            slot.tokens = self.taken(slot.tokens, list(slot.scored[0]))
        else:
            super().commit(slot, path)

    def taken(self, old: list[int], new: list[int]) -> list[int]:
        raise NotImplementedError


class PrefillStartsOver(Chunks):
    """A second chunk overwrites the first, though the length is right."""

    def taken(self, old: list[int], new: list[int]) -> list[int]:
        return [*new, *old]


class PrefillForgets(Chunks):
    """Long prompts lose their first token to a padding one."""

    def taken(self, old: list[int], new: list[int]) -> list[int]:
        return [*old, *([0, *new[1:]] if len(new) > 6 else new)]


class RootAlone(Wrong):
    """Of several tokens before a draft only the last is seen, though all are kept."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = super().score([item._replace(tokens=item.tokens[-1:]) for item in work])
        for item in work:
            item.slot.scored = item.tokens, item.draft
        return found


class ChunksAlone(Wrong):
    """A pass that scores something drops the chunks of prompts in it."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = super().score(work)
        if any(item.logits for item in work):
            for item in work:
                if not item.logits:
                    item.slot.scored = [0] * len(item.tokens), item.draft
        return found


class Rows(Wrong):
    """Builds each row from what `seen` says of the path to its node."""

    def seen(self, draft: Draft, node: int) -> Sequence[int]:
        return draft.path(node)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = []
        for slot, tokens, draft, wanted, _ in work:
            slot.scored = tokens, draft
            if not wanted:
                found.append(Scores(torch.empty(0, VOCAB, dtype=torch.float64)))
                continue
            before = (*slot.tokens, *tokens)
            seen = [(), *(self.seen(draft, node) for node in range(len(draft)))]
            rows = [law((*before, *(draft.tokens[i] for i in nodes))) for nodes in seen]
            found.append(Scores(torch.stack(rows).double().log()))
        return found


class OneTooFew(Rows):
    """Each row of a draft sees the tokens before its node, and not its node."""

    def seen(self, draft: Draft, node: int) -> Sequence[int]:
        return draft.path(node)[:-1]


class LongChains(Rows):
    """Only what is near is seen."""

    def seen(self, draft: Draft, node: int) -> Sequence[int]:
        return draft.path(node)[-2:]


class CausalTree(Rows):
    """A tree is masked as if it were a chain."""

    def seen(self, draft: Draft, node: int) -> Sequence[int]:
        return range(node + 1)


class Siblings(Rows):
    """A node also sees the sibling drawn before it."""

    def seen(self, draft: Draft, node: int) -> Sequence[int]:
        assert draft.parents is not None
        parent = draft.parents[node]
        return (*draft.path(parent), *(i for i in draft.children(parent) if i <= node))


class FirstNodes(Wrong):
    """Keeps as many nodes as the path has, but the first ones of the draft."""

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        assert slot.scored is not None
        tokens, draft = slot.scored
        slot.tokens += [*tokens, *draft.tokens[: len(path)]]


class BlindRows(Wrong):
    """Its auxiliary rows see the root and themselves alone."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        blind = []
        for item in work:
            draft = item.draft
            if draft.aux is not None:
                visible = torch.zeros_like(draft.aux.visible)
                visible[:, 0] = True
                visible[:, 1 + len(draft) :].fill_diagonal_(True)
                draft = replace(draft, aux=replace(draft.aux, visible=visible))
            blind.append(item._replace(draft=draft))
        return super().score(blind)


class NoRoot(Wrong):
    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        super().commit(slot, path)
        if path:
            del slot.tokens[-len(path) - 1]


def append(slot: TableSlot, tokens: Sequence[int], draft: Draft, path: Sequence[int]) -> None:
    """Commit whatever is at the places of the path."""
    slot.tokens += [*tokens, *(draft.tokens[i % len(draft)] if len(draft) else 0 for i in path)]
    slot.scored = None


class FirstScore(Wrong):
    """Commits the draft of the first score and not of the last."""

    def __init__(self) -> None:
        super().__init__()
        self.first: dict[int, Draft] = {}

    def score(self, work: Sequence[Work]) -> list[Scores]:
        for item in work:
            self.first.setdefault(id(item.slot), item.draft)
        return super().score(work)

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        assert slot.scored is not None
        append(slot, slot.scored[0], self.first.pop(id(slot)), path)

    def close(self, slot: TableSlot) -> None:
        self.first.pop(id(slot), None)
        super().close(slot)


class Trim(Wrong):
    """Says that it is cut, and appends to what was there before."""

    def rollback(self, slot: TableSlot, length: int) -> None:
        kept = list(slot.tokens)
        super().rollback(slot, length)
        if 0 < length < len(kept):
            slot.tokens[-1] = kept[-1]


class RollbackShort(Wrong):
    def rollback(self, slot: TableSlot, length: int) -> None:
        super().rollback(slot, max(0, length - 1))


class Swapped(Wrong):
    """The rows of slots that share a pass come in another order."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        found = super().score(work)
        sizes = [len(scores.logits) for scores in found]
        rows = torch.cat([scores.logits for scores in found])
        return [Scores(part) for part in rows.roll(1, 0).split(sizes)] if len(found) > 1 else found


class Padded(Wrong):
    """Slots that share a pass are padded to one length, and the padding is seen."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        longest = max(len(item.slot.tokens) for item in work)
        found = super().score(work)
        for index, item in enumerate(work):
            if padding := longest - len(item.slot.tokens):
                padded = TableSlot([0] * padding + item.slot.tokens)
                found[index] = TableTarget.score(self, [item._replace(slot=padded)])[0]
        return found


class LastCommits(Wrong):
    """After a shared pass every slot commits the draft of the last."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.last = work[-1].draft
        return super().score(work)

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        assert slot.scored is not None
        append(slot, slot.scored[0], self.last, path)


class LastPass(Wrong):
    """Knows the drafts of the last pass alone, and not those of slots that were not in it."""

    def __init__(self) -> None:
        super().__init__()
        self.last: dict[int, tuple[Sequence[int], Draft]] = {}

    def score(self, work: Sequence[Work]) -> list[Scores]:
        self.last = {id(item.slot): (item.tokens, item.draft) for item in work}
        return super().score(work)

    def commit(self, slot: TableSlot, path: Sequence[int]) -> None:
        append(slot, *self.last.get(id(slot), ([0], Draft())), path)


class CloseAll(Wrong):
    """Closing a slot empties the others."""

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[TableSlot] = []

    def open(self, capacity: int) -> TableSlot:
        self.slots.append(super().open(capacity))
        return self.slots[-1]

    def close(self, slot: TableSlot) -> None:
        self.slots.remove(slot)
        for other in self.slots:
            other.tokens = [0] * len(other.tokens)


class OpensAll(Wrong):
    def __init__(self) -> None:
        super().__init__(24)

    def open(self, capacity: int) -> TableSlot:
        return TableSlot()


class OneShort(Wrong):
    """Cannot feed the last position that its limit promises."""

    def __init__(self) -> None:
        super().__init__(24)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        ends = (len(i.slot.tokens) + len(i.tokens) + i.draft.max_path_length for i in work)
        if any(end >= 23 for end in ends):
            raise IndexError("index 22 is out of bounds")
        return super().score(work)


class RefusesChunks(Wrong):
    """A pass of which no logits are wanted is no error."""

    def score(self, work: Sequence[Work]) -> list[Scores]:
        if not any(item.logits for item in work):
            raise RuntimeError("nothing to do")
        return super().score(work)


class OddBytes(Wrong):
    def slot_bytes(self, capacity: int) -> int:
        return 100 - capacity


class Everything:
    """Recalls whatever it is asked for, which it did not read."""

    is_on = True

    def resize(self, max_bytes: int) -> None:
        pass

    def held(self) -> AbstractContextManager[None]:
        return nullcontext()

    def remember(self, slot: TableSlot, start: int, end: int | None = None) -> None:
        pass

    def recall(self, slot: TableSlot, tokens: Sequence[int]) -> bool:
        slot.tokens += tokens
        return True


class Nothing(Everything):
    def recall(self, slot: TableSlot, tokens: Sequence[int]) -> bool:
        return False


class Backwards(Everything):
    def recall(self, slot: TableSlot, tokens: Sequence[int]) -> bool:
        slot.tokens += [(token + 1) % VOCAB for token in tokens]
        return True


class Prefixed(Wrong):
    def __init__(self, prefixes: Everything) -> None:
        super().__init__()
        self.prefixes = prefixes  # type: ignore[assignment]


FAULTS: list[tuple[Target, TargetRule]] = [
    (OddInfo("a table"), TargetRule.INFO),
    (OddInfo(TargetInfo("odd", 0)), TargetRule.INFO),
    (OddInfo(TargetInfo("odd", float(VOCAB))), TargetRule.INFO),
    (OddInfo(TargetInfo("odd", VOCAB, max_length=True)), TargetRule.INFO),
    (OddInfo(TargetInfo("odd", VOCAB, max_draft_tokens=-1)), TargetRule.INFO),
    (OddInfo(TargetInfo("odd", VOCAB - 1)), TargetRule.SCORES),
    (FewScores(), TargetRule.SCORES),
    (NoRootRow(), TargetRule.SCORES),
    (HalfPrecision(), TargetRule.SCORES),
    (NotANumber(), TargetRule.SCORES),
    (AList(), TargetRule.SCORES),
    (OneBuffer(), TargetRule.SCORES),
    (Moody(), TargetRule.SCORES),
    (ScoreCaches(), TargetRule.LENGTH),
    (OldLength(), TargetRule.LENGTH),
    (NoRoot(), TargetRule.LENGTH),
    (BlindRows(), TargetRule.AUXILIARY),
    (PrefillStartsOver(), TargetRule.PREFILL),
    (PrefillForgets(), TargetRule.PREFILL),
    (RootAlone(), TargetRule.PREFILL),
    (ChunksAlone(), TargetRule.BATCH),
    (OneTooFew(), TargetRule.CHAIN),
    (LongChains(), TargetRule.CHAIN),
    (CausalTree(), TargetRule.TREE),
    (Siblings(), TargetRule.TREE),
    (FirstNodes(), TargetRule.COMMIT),
    (FirstScore(), TargetRule.COMMIT),
    (Trim(), TargetRule.ROLLBACK),
    (RollbackShort(), TargetRule.LENGTH),
    (Swapped(), TargetRule.BATCH),
    (Padded(), TargetRule.BATCH),
    (LastCommits(), TargetRule.BATCH),
    (LastPass(), TargetRule.ISOLATION),
    (CloseAll(), TargetRule.ISOLATION),
    (OpensAll(), TargetRule.LIMIT),
    (OddBytes(), TargetRule.MEMORY),
    (Prefixed(Everything()), TargetRule.PREFIXES),
    (Prefixed(Nothing()), TargetRule.PREFIXES),
    (Prefixed(Backwards()), TargetRule.PREFIXES),
    (OneShort(), TargetRule.FAILURE),
    (RefusesChunks(), TargetRule.FAILURE),
]


@pytest.mark.parametrize(
    ("target", "rule"), FAULTS, ids=[f"{type(t).__name__}-{rule.value}" for t, rule in FAULTS]
)
def test_each_fault_is_caught_under_its_rule(target: Target, rule: TargetRule) -> None:
    with pytest.raises(ContractViolation, match=f"breaks the rule '{rule.value}'"):
        check_target(target)


def test_every_rule_has_a_fault_that_breaks_it() -> None:
    assert {rule for _, rule in FAULTS} == set(TargetRule)


def test_a_fault_in_a_real_cache_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    target = CachedTarget(HFDecoder(build("llama")))
    monkeypatch.setattr(
        "paceline.targets.state.kv.KeyValueCache.keep",
        lambda self, rows: setattr(self, "length", self.length + len(rows)) or self.length,
    )
    with pytest.raises(ContractViolation, match="breaks the rule 'commit'"):
        check_target(target)


def test_a_small_difference_is_one_of_rounding_and_the_tolerance_says_how_small() -> None:
    class Rounded(Wrong):
        def score(self, work: Sequence[Work]) -> list[Scores]:
            # What a pass of several rows may do to the last bits.
            return [Scores(s.logits + 3e-3 * (len(s.logits) > 1)) for s in super().score(work)]

    check_target(Rounded(), tolerance=1e-2)
    with pytest.raises(ContractViolation, match="breaks the rule 'chain'"):
        check_target(Rounded())


@pytest.mark.parametrize(
    ("prompts", "says"),
    [
        ([], "at least one prompt"),
        ([[1], []], "at least one prompt, of at least one token"),
        ([[1, VOCAB]], "outside 0 to 12"),
        ([[1] * 20], "the checks need 26 tokens"),
    ],
)
def test_prompts_that_do_not_suit_are_bad_input(prompts: list[list[int]], says: str) -> None:
    with pytest.raises(InvalidInput, match=says):
        check_target(Wrong(24), prompts)


def test_every_slot_is_closed_also_after_a_fault() -> None:
    class Counting(Reshaped):
        opened = closed = 0

        def open(self, capacity: int) -> TableSlot:
            self.opened += 1
            return super().open(capacity)

        def close(self, slot: TableSlot) -> None:
            self.closed += 1
            super().close(slot)

    target = Counting()
    check_target(target, [(1, 2, 3)])
    assert target.opened == target.closed > 0

    class Faulty(Counting):
        function = staticmethod(lambda logits: logits[:, :1])

    faulty = Faulty()
    with pytest.raises(ContractViolation):
        check_target(faulty, [(1, 2, 3)])
    assert faulty.opened == faulty.closed > 0
