"""Invariant mode: the same bits, and so the same tokens, whatever is drafted."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.sampling import SamplingParams
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.errors import InvalidInput, UnsupportedModel
from paceline.targets.attention import Pass
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Output
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights
from paceline.targets.invariant import KEYS, holds, make_invariant
from paceline.verifiers.coupling import CouplingVerifier
from tests.rigged import ragged, run
from tests.tiny_models import VOCAB, build, tokens_of

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SIZES = {"hidden_size": 64, "intermediate_size": 128, "head_dim": 16}


@cache
def decoder(dtype: str, max_length: int = 1024) -> DenseDecoder:
    model = build("llama", max_position_embeddings=max_length, **SIZES)
    return from_weights(
        model.state_dict(),
        model.config,
        dtype=DTYPES[dtype],
        storage="packed",
        head_storage="packed",
    )


@cache
def invariant(dtype: str) -> CachedTarget:
    return make_invariant(decoder(dtype))


def by_blocks(
    target: CachedTarget, text: Sequence[int], prompt: int, size: int, rejected: int = 0
) -> Tensor:
    """The logits behind all tokens from `prompt` on, committed `size` at a time."""
    slot = target.open(len(text) + 8)
    prefill(target, slot, text[:prompt])
    rows = []
    for at in range(prompt, len(text), size):
        block = text[at : at + size]
        wrong = [(token + 1) % VOCAB for token in block[:rejected]]
        draft = Draft((*block[1:], *wrong))
        rows.append(target.score([Work(slot, [block[0]], draft)])[0].logits[: len(block)])
        target.commit(slot, range(len(block) - 1))
    return torch.cat(rows)


class Noisy:
    """A decoder whose logits depend, by one part in a million, on the row that they stand in."""

    def __init__(self, decoder: DenseDecoder, least_context: int = 0) -> None:
        self._decoder, self._least = decoder, least_context
        self.info, self.device = decoder.info, decoder.device
        self.text_head, self.state = decoder.text_head, decoder.state

    def run(self, batch: Pass) -> Output:
        logits = self._decoder.run(batch).logits
        if batch.segments[0].start < self._least:
            return Output(logits)
        return Output(logits * (1 + 1e-6 * torch.arange(len(logits)))[:, None])


@pytest.mark.parametrize("dtype", DTYPES)
class TestBits:
    def test_the_shape_that_was_found_holds(self, dtype: str) -> None:
        target = invariant(dtype)
        assert holds(target)
        assert target.fixed_rows is not None
        assert target.info.max_draft_tokens == target.fixed_rows - 1

    # Within one block of attention's keys, across the first border, and across the second.
    @pytest.mark.parametrize("prompt", [5, KEYS - 10, 2 * KEYS - 40])
    def test_every_split_gives_the_same_bits(self, dtype: str, prompt: int) -> None:
        target = invariant(dtype)
        most = target.fixed_rows or 0
        text = tokens_of(prompt + 24, seed=prompt)
        plain = by_blocks(target, text, prompt, 1)
        for size, rejected in ((1, 1), (2, 2), (3, 1), (most - 1, 1), (most, 0)):
            assert torch.equal(by_blocks(target, text, prompt, size, rejected), plain), size

    @pytest.mark.parametrize("k", [3, 7])
    @pytest.mark.parametrize("prompt", [12, KEYS - 15])
    def test_greedy_text_is_that_of_plain_decoding(self, dtype: str, k: int, prompt: int) -> None:
        target = invariant(dtype)
        text = tokens_of(prompt, seed=1)
        options: dict[str, Any] = {"max_tokens": 36, "keep_logits": True}
        plain = run(target, text, **options)
        whole = (*text, *plain.tokens)
        drafters = {
            "ngram": NgramDrafter(),
            "model": ModelDrafter(CachedTarget(decoder("bfloat16"))),
            "rigged": ragged(whole, VOCAB, [0, 7, 2, 5, 1]),
        }
        for name, drafter in drafters.items():
            found = run(target, text, drafter, k=k, **options)
            assert found.tokens == plain.tokens, name
            assert torch.equal(found.logits, plain.logits), name
            if name != "ngram":
                assert sum(r.num_accepted_tokens for r in found.rounds) > 0, name

    def test_coupled_text_is_that_of_plain_decoding(self, dtype: str) -> None:
        """Sampled, with noise that is fixed by position: the path, not only the law."""
        target, text = invariant(dtype), tokens_of(20, seed=2)
        options: dict[str, Any] = {
            "params": SamplingParams(temperature=1.0, top_p=0.95),
            "verifier": CouplingVerifier(),
            "max_tokens": 30,
        }
        draft_model = CachedTarget(decoder("bfloat16"))
        for seed in range(3):
            plain = run(target, text, seed=seed, **options)
            for drafter in (NgramDrafter(), ModelDrafter(draft_model)):
                found = run(target, text, drafter, k=5, seed=seed, **options)
                assert found.tokens == plain.tokens
            assert sum(r.num_accepted_tokens for r in found.rounds) > 0

    def test_in_company_as_alone(self, dtype: str) -> None:
        target = invariant(dtype)
        texts = [tokens_of(n, seed=n) for n in (3, 30)]
        work = []
        for text in texts:
            slot = target.open(40)
            prefill(target, slot, text[:-1])
            work.append(Work(slot, [text[-1]], Draft((5, 6))))
        together = target.score(work)
        for item, scores in zip(work, together, strict=True):
            assert torch.equal(target.score([item])[0].logits, scores.logits)


def test_a_longer_draft_is_clipped() -> None:
    target = invariant("float32")
    text = tokens_of(8, seed=3)
    plain = run(target, text, max_tokens=30)
    found = run(target, text, ragged((*text, *plain.tokens), VOCAB, [99]), k=20, max_tokens=30)
    assert found.tokens == plain.tokens
    assert max(r.num_draft_tokens for r in found.rounds) == target.info.max_draft_tokens


def test_trees_are_refused() -> None:
    """A sibling between a row's keys shifts the lanes that sum them: the bits would differ."""
    target = invariant("float32")
    slot = target.open(10)
    with pytest.raises(InvalidInput, match="chains, and this one is a tree"):
        target.score([Work(slot, [5], Draft((6, 7), parents=(-1, -1)))])


@pytest.mark.parametrize("least_context", [0, KEYS - 20], ids=["everywhere", "far-out"])
def test_rows_that_depend_on_their_place_are_refused(least_context: int) -> None:
    noisy = Noisy(decoder("float32"), least_context)
    assert not holds(CachedTarget(noisy, fixed_rows=8, fixed_keys=KEYS))
    with pytest.raises(UnsupportedModel, match="8, 4, 16 rows; decode without invariant mode"):
        make_invariant(noisy)


def test_a_later_shape_is_taken_where_the_first_does_not_hold() -> None:
    class NoisyInEight(Noisy):
        def run(self, batch: Pass) -> Output:
            eight = batch.segments[0].rows == 8
            return super().run(batch) if eight else self._decoder.run(batch)

    assert make_invariant(NoisyInEight(decoder("float32"))).fixed_rows == 4


def test_a_context_too_short_for_the_probe() -> None:
    """It tries what fits; the first border of keys does not."""
    target = make_invariant(decoder("float32", max_length=64))
    text = tokens_of(40)
    plain = by_blocks(target, text, 4, 1)
    assert torch.equal(by_blocks(target, text, 4, 3, 1), plain)
