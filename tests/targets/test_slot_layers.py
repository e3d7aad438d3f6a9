"""The target's own layers: a subset of them against an oracle, the cache, and resumed passes."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import DynamicCache

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.target import Need, SkipSet
from paceline.core.view import TargetLayers
from paceline.drafting.self_draft import layers_of
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput
from paceline.targets.attention import Pass
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights
from paceline.targets.hf.decoder import HFDecoder
from paceline.targets.slot import Slot
from tests.tiny_models import VOCAB, build, own_logits, tokens_of

CLOSE: dict[str, Any] = {"rtol": 0, "atol": 1e-4}
LAYERS = 6
TEXT = tokens_of(12)
CHAIN = tokens_of(5, seed=1)
TREE = Draft(CHAIN, parents=(-1, 0, 0, 1, 2))

SKIPS = {
    "nothing": SkipSet(),
    "all": SkipSet.after(0, LAYERS),
    "the first": SkipSet(frozenset({0}), frozenset({0})),
    "the last": SkipSet.after(5, LAYERS),
    "an exit": SkipSet.after(2, LAYERS),
    "attention": SkipSet(frozenset({1, 4}), frozenset()),
    "feed-forward": SkipSet(frozenset(), frozenset({3, 4})),
    "both, not alike": SkipSet(frozenset({1, 2, 5}), frozenset({2, 3})),
}


class Counting(DenseDecoder):
    """Counts the rows that go through the parts of each layer."""

    calls: Counter[int]
    rows: Counter[int]

    def layer(self, number: int, x: Tensor, batch: Pass, angles: Any, **parts: bool) -> Tensor:
        self.calls[number] += 1
        self.rows[number] += len(batch.tokens)
        return super().layer(number, x, batch, angles, **parts)


def counting(model: Any) -> Counting:
    decoder = from_weights(model.state_dict(), model.config, dtype=torch.float32, kind=Counting)
    assert isinstance(decoder, Counting)
    decoder.calls, decoder.rows = Counter(), Counter()
    return decoder


@pytest.fixture(scope="module", params=["llama", "qwen2", "qwen3", "gemma"])
def model(request: pytest.FixtureRequest) -> Any:
    return build(request.param, num_hidden_layers=LAYERS)


@pytest.fixture
def target(model: Any) -> CachedTarget:
    return CachedTarget(counting(model))


def opened(
    target: CachedTarget, text: Sequence[int] = TEXT, capacity: int = 40
) -> tuple[Slot, TargetLayers]:
    slot = target.open(capacity)
    prefill(target, slot, text[:-1])
    return slot, layers_of(target.view(slot), "test")


def draft_logits(own: TargetLayers, skip: SkipSet, tokens: Sequence[int]) -> Tensor:
    """Token by token, as drafters do."""
    own.start(skip)
    return torch.stack([own.run([token]) for token in tokens])


class _None(nn.Module):
    """In place of a part: adds nothing to the residual stream."""

    def __init__(self, attention: bool) -> None:
        super().__init__()
        self._attention = attention

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Any:
        nothing = torch.zeros_like(hidden_states)
        return (nothing, None) if self._attention else nothing


def without(model: Any, skip: SkipSet) -> Any:
    """The model of transformers with the parts taken out."""
    cut = copy.deepcopy(model)
    for number in skip.attention:
        cut.model.layers[number].self_attn = _None(True)
    for number in skip.mlp:
        cut.model.layers[number].mlp = _None(False)
    return cut


class TestTheSubset:
    @pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS.keys())
    def test_is_the_model_without_these_parts(
        self, model: Any, target: CachedTarget, skip: SkipSet
    ) -> None:
        """Behind one committed token there is no key of the whole model to be seen."""
        _, own = opened(target, TEXT[:1])
        found = draft_logits(own, skip, (*TEXT[:1], *CHAIN))
        expected = own_logits(without(model, skip), (*TEXT[:1], *CHAIN))
        torch.testing.assert_close(found, expected, **CLOSE)

    @pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS.keys())
    def test_sees_the_target_s_own_keys_of_committed_tokens(
        self, model: Any, target: CachedTarget, skip: SkipSet
    ) -> None:
        """The oracle: modules of transformers, the cut ones on the whole model's cache."""
        _, own = opened(target)
        found = draft_logits(own, skip, (TEXT[-1], *CHAIN))
        past = DynamicCache()
        with torch.no_grad():
            model(torch.tensor([TEXT[:-1]]), None, None, past)
            output = without(model, skip)(torch.tensor([[TEXT[-1], *CHAIN]]), None, None, past)
        torch.testing.assert_close(found, output.logits[0], **CLOSE)

    def test_nothing_skipped_is_the_target(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        found = draft_logits(own, SkipSet(), (TEXT[-1], *CHAIN))
        expected = target.score([Work(slot, [TEXT[-1]], Draft(CHAIN))])[0].logits
        torch.testing.assert_close(found, expected, **CLOSE)

    def test_several_tokens_at_once_are_those_one_by_one(self, target: CachedTarget) -> None:
        _, own = opened(target)
        skip = SKIPS["both, not alike"]
        one_by_one = draft_logits(own, skip, (TEXT[-1], *CHAIN))
        own.start(skip)
        own.run([TEXT[-1], *CHAIN[:2]])
        torch.testing.assert_close(own.run(CHAIN[2:]), one_by_one[-1], **CLOSE)

    def test_a_new_start_forgets(self, target: CachedTarget) -> None:
        _, own = opened(target)
        first = draft_logits(own, SKIPS["attention"], (TEXT[-1], *CHAIN))
        draft_logits(own, SKIPS["an exit"], (TEXT[-1], 5, 6, 7))
        torch.testing.assert_close(
            draft_logits(own, SKIPS["attention"], (TEXT[-1], *CHAIN)), first, rtol=0, atol=0
        )


class TestReplay:
    @pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS.keys())
    @pytest.mark.parametrize("start", [0, 4, len(TEXT) - 1])
    def test_is_what_a_draft_would_have_said(
        self, target: CachedTarget, skip: SkipSet, start: int
    ) -> None:
        _, own = opened(target)
        found = own.replay(start, TEXT[start:], skip)
        _, then = opened(target, TEXT[: start + 1])
        torch.testing.assert_close(found, draft_logits(then, skip, TEXT[start:]), **CLOSE)

    def test_changes_nothing_of_the_target(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        expected = target.score([Work(slot, [TEXT[-1]], Draft(CHAIN))])[0].logits
        own.start(SKIPS["an exit"])
        own.run([TEXT[-1]])
        own.replay(2, TEXT[2:9], SKIPS["both, not alike"])
        found = target.score([Work(slot, [TEXT[-1]], Draft(CHAIN))])[0].logits
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        with pytest.raises(ContractViolation, match="without a call of start"):
            own.run([TEXT[-1]])

    @pytest.mark.parametrize(("start", "count"), [(-1, 2), (12, 1), (5, 8)])
    def test_takes_committed_tokens_alone(
        self, target: CachedTarget, start: int, count: int
    ) -> None:
        _, own = opened(target)
        with pytest.raises(ContractViolation, match="committed tokens, and there are 12"):
            own.replay(start, [3] * count, SkipSet())


class TestTheTargetStaysAsItIs:
    @pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS.keys())
    def test_committed_keys_and_values_keep_their_bits(
        self, target: CachedTarget, skip: SkipSet
    ) -> None:
        slot, own = opened(target)
        end = slot.state.length
        before = [(k[:, :end].clone(), v[:, :end].clone()) for k, v in slot.state.layers]
        draft_logits(own, skip, (TEXT[-1], *CHAIN))
        own.replay(3, TEXT[3:], skip)
        assert slot.state.length == end == target.length(slot)
        for (key, value), (old_key, old_value) in zip(slot.state.layers, before, strict=True):
            assert torch.equal(key[:, :end], old_key)
            assert torch.equal(value[:, :end], old_value)

    @pytest.mark.parametrize("accepted", [0, 2, 5])
    @pytest.mark.parametrize("skip", SKIPS.values(), ids=SKIPS.keys())
    def test_rounds_go_on_as_without_a_draft(
        self, target: CachedTarget, skip: SkipSet, accepted: int
    ) -> None:
        """The keys of resumed rows too: later passes read them."""
        slot, own = opened(target)
        plain, _ = opened(target)
        text = TEXT
        for number in range(3):
            chain = tokens_of(5, seed=number)
            draft_logits(own, skip, (text[-1], *chain[:-1]))
            rows = [
                target.score([Work(place, [text[-1]], Draft(chain))])[0].logits
                for place in (slot, plain)
            ]
            torch.testing.assert_close(*rows, **CLOSE)
            for place in (slot, plain):
                target.commit(place, range(accepted))
            text = (*text, *chain[:accepted], 7 + number)
        for ours, theirs in zip(slot.state.layers, plain.state.layers, strict=True):
            for one, two in zip(ours, theirs, strict=True):
                end = slot.state.length
                torch.testing.assert_close(one[:, :end], two[:, :end], **CLOSE)

    def test_what_was_run_is_forgotten_with_every_change(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        for change in (
            lambda: target.score([Work(slot, [TEXT[-1]], Draft())]),
            lambda: target.rollback(slot, 8),
            lambda: prefill(target, slot, [5, 6]),
            lambda: target.close(slot),
        ):
            own.start(SKIPS["an exit"])
            own.run([TEXT[-1]])
            change()
            assert slot.ahead is None
            with pytest.raises(ContractViolation, match="without a call of start"):
                own.run([3])


class TestResumedPasses:
    """Rows that were drafted with the first layers go through the others alone."""

    def scored(self, target: CachedTarget, work: list[Work]) -> tuple[list[Tensor], Counter[int]]:
        decoder = target.decoder
        assert isinstance(decoder, Counting)
        decoder.calls, decoder.rows = Counter(), Counter()
        return [scores.logits for scores in target.score(work)], decoder.rows

    def test_fewer_rows_go_through_the_first_layers(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        whole, rows = self.scored(target, [Work(slot, [TEXT[-1]], Draft(CHAIN))])
        assert rows == dict.fromkeys(range(LAYERS), 6)
        draft_logits(own, SkipSet.after(2, LAYERS), (TEXT[-1], *CHAIN[:-1]))
        resumed, rows = self.scored(target, [Work(slot, [TEXT[-1]], Draft(CHAIN))])
        assert rows == {0: 1, 1: 1, 2: 6, 3: 6, 4: 6, 5: 6}, "all but the last drafted row"
        torch.testing.assert_close(resumed, whole, **CLOSE)

    def test_no_layer_runs_where_every_row_is_ahead(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        draft_logits(own, SkipSet.after(2, LAYERS), (TEXT[-1], *CHAIN))
        _, rows = self.scored(target, [Work(slot, [TEXT[-1]], Draft(CHAIN))])
        assert rows == {2: 6, 3: 6, 4: 6, 5: 6}

    def test_a_skip_set_resumes_behind_its_whole_layers(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        draft_logits(own, SkipSet(frozenset({4}), frozenset({3})), (TEXT[-1], *CHAIN[:-1]))
        _, rows = self.scored(target, [Work(slot, [TEXT[-1]], Draft(CHAIN))])
        assert rows == {0: 1, 1: 1, 2: 1, 3: 6, 4: 6, 5: 6}

    def test_another_draft_shares_what_it_can(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        other = (*CHAIN[:2], 60, *CHAIN[3:])
        whole, _ = self.scored(target, [Work(slot, [TEXT[-1]], Draft(other))])
        draft_logits(own, SkipSet.after(3, LAYERS), (TEXT[-1], *CHAIN))
        resumed, rows = self.scored(target, [Work(slot, [TEXT[-1]], Draft(other))])
        assert [rows[n] for n in range(LAYERS)] == [3, 3, 3, 6, 6, 6]
        torch.testing.assert_close(resumed, whole, **CLOSE)

    def test_trees_and_other_roots_run_whole(self, target: CachedTarget) -> None:
        slot, own = opened(target)
        for root, draft in ((TEXT[-1], TREE), ((TEXT[-1] + 1) % VOCAB, Draft(CHAIN))):
            whole, _ = self.scored(target, [Work(slot, [root], draft)])
            draft_logits(own, SkipSet.after(3, LAYERS), (TEXT[-1], *CHAIN))
            found, rows = self.scored(target, [Work(slot, [root], draft)])
            assert rows == dict.fromkeys(range(LAYERS), 6)
            torch.testing.assert_close(found, whole, **CLOSE)

    def test_sequences_at_different_layers_share_a_pass(self, target: CachedTarget) -> None:
        texts = [tokens_of(n, seed=n) for n in (3, 9, 5, 7)]
        drafts = [Draft(CHAIN), Draft(CHAIN[:3]), TREE, Draft()]
        exits = [2, 4, None, None]
        alone, work = [], []
        for text, draft, exit_layer in zip(texts, drafts, exits, strict=True):
            slot, own = opened(target, text)
            alone += self.scored(target, [Work(slot, [text[-1]], draft)])[0]
            if exit_layer is not None:
                tokens = (text[-1], *draft.tokens[:-1])
                draft_logits(own, SkipSet.after(exit_layer, LAYERS), tokens)
            work.append(Work(slot, [text[-1]], draft))
        together, rows = self.scored(target, work)
        torch.testing.assert_close(together, alone, **CLOSE)
        # 6, 4, 6 and 1 rows, of which 5 are at layer 2 and 3 at layer 4 already.
        assert [rows[n] for n in range(LAYERS)] == [9, 9, 14, 14, 17, 17]

    def test_invariant_mode_runs_every_row_through_its_one_shape(self, model: Any) -> None:
        target = CachedTarget(counting(model), fixed_rows=8, fixed_keys=64)
        slot, own = opened(target)
        (expected,), _ = self.scored(target, [Work(slot, [TEXT[-1]], Draft(CHAIN))])
        draft_logits(own, SkipSet.after(2, LAYERS), (TEXT[-1], *CHAIN[:-1]))
        (found,), rows = self.scored(target, [Work(slot, [TEXT[-1]], Draft(CHAIN))])
        assert rows == dict.fromkeys(range(LAYERS), 8)
        assert torch.equal(found, expected)


class TestLimits:
    def test_a_draft_up_to_the_capacity_and_no_further(self, target: CachedTarget) -> None:
        _, own = opened(target, capacity=len(TEXT) + 2)
        own.start(SKIPS["attention"])
        own.run([TEXT[-1], 5, 6])
        with pytest.raises(ContextOverflow, match="opened for 14 tokens and a draft would reach"):
            own.run([7])

    @pytest.mark.parametrize("layer", [-1, LAYERS])
    def test_layers_that_are_not_there(self, target: CachedTarget, layer: int) -> None:
        _, own = opened(target)
        skip = SkipSet(frozenset({layer}))
        for call in (lambda: own.start(skip), lambda: own.replay(0, TEXT[:2], skip)):
            with pytest.raises(InvalidInput, match=f"layer {layer} cannot be skipped"):
                call()

    def test_it_is_the_lean_decoder_that_gives_layers(
        self, model: Any, target: CachedTarget
    ) -> None:
        assert Need.LAYERS in target.info.gives
        assert Need.LAYERS not in CachedTarget(HFDecoder(model, probe=False)).info.gives
        assert layers_of(target.view(target.open(4)), "test").num_layers == LAYERS
