"""Ties and faults: by hand, where passes round differently, and with a wrong mask planted."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.protocols import Target, Work
from paceline.core.target import Scores
from paceline.targets.attention import Segment
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.loading import from_weights
from paceline.testing.differences import Parting, first_difference
from tests.rigged import ragged, run
from tests.tiny_models import VOCAB, build, tokens_of

BF16 = torch.bfloat16
PROMPTS = [tokens_of(12, seed=seed) for seed in range(30)]


def rows(*logits: tuple[float, ...]) -> list[Tensor]:
    return [torch.tensor(row) for row in logits]


def test_equal_answers_do_not_part() -> None:
    logits = rows((0.0, 1.0), (1.0, 0.0))
    assert first_difference([1, 0], logits, [1, 0], logits, dtype=BF16) is None
    assert first_difference([], [], [], [], dtype=BF16) is None


def test_the_first_token_that_differs_counts_with_the_numbers_there() -> None:
    plain = rows((0.0, 1.0, -1.0), (3.0, 2.75, -1.0), (0.0, 9.0, 0.0))
    other = rows((0.0, 1.0, -1.0), (2.5, 2.875, -1.5), (9.0, 0.0, 0.0))
    found = first_difference([1, 0, 1], plain, [1, 1, 0], other, dtype=BF16)
    assert found is not None
    assert (found.position, found.gap, found.pass_difference) == (1, 0.25, 0.5)
    # The spread of 3, 2.75 and -1 is around their mean 1.583.
    spread = math.sqrt((1.4167**2 + 1.1667**2 + 2.5833**2) / 2)
    differences = math.sqrt((0.5**2 + 0.125**2 + 0.5**2) / 3)
    assert found.deviation == pytest.approx(differences / spread, rel=1e-3)
    assert found.tolerance == 40 / 128


def test_tokens_that_may_not_come_have_no_part_in_it() -> None:
    banned = -math.inf
    plain, other = rows((1.0, 0.9, -1.0, banned)), rows((0.95, 0.97, -1.0, banned))
    found = first_difference([0], plain, [1], other, dtype=BF16)
    assert found is not None
    assert found.pass_difference == pytest.approx(0.07)
    assert 0.03 < found.deviation < 0.06


@pytest.mark.parametrize(
    ("gap", "difference", "deviation", "label"),
    [
        (0.1, 0.05, 0.3, "tie"),
        (0.0, 0.0, 0.0, "tie"),
        (0.11, 0.05, 0.1, "fault"),
        (0.1, 0.2, 0.31, "fault"),
        (0.1, math.nan, 0.1, "fault"),
        (0.1, 0.1, math.nan, "fault"),
        (math.nan, 0.1, 0.1, "fault"),
    ],
)
def test_a_tie_takes_a_small_gap_and_a_small_difference(
    gap: float, difference: float, deviation: float, label: str
) -> None:
    assert Parting(0, gap, difference, deviation, 0.3).label == label


@pytest.mark.parametrize("lengths", [(1, 2), (2, 1)])
def test_an_answer_that_ends_early_is_a_fault(lengths: tuple[int, int]) -> None:
    logits, tokens = rows((0.0, 1.0), (0.0, 1.0)), [1, 1]
    one, other = lengths
    found = first_difference(tokens[:one], logits, tokens[:other], logits, dtype=BF16)
    assert found is not None
    assert (found.position, found.label) == (1, "fault")


# ---------------------------------------------------------------- a model in bfloat16


class RoundsOtherwise:
    """A target whose passes of several rows differ from those of one row, as by rounding.

    The noise is that of bfloat16 in a tiny model: .01 of the spread of the logits.
    """

    def __init__(self, target: CachedTarget) -> None:
        self._target, self._generator = target, torch.Generator().manual_seed(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)

    def score(self, work: Sequence[Work]) -> list[Scores]:
        scores = self._target.score(work)
        if not any(len(item.draft) for item in work):
            return scores
        return [Scores(self._noisy(one.logits)) for one in scores]

    def _noisy(self, logits: Tensor) -> Tensor:
        noise = torch.randn(logits.shape, generator=self._generator)
        return logits + 0.01 * logits.std(dim=-1, keepdim=True) * noise


def bfloat16() -> CachedTarget:
    model = build("llama")
    return CachedTarget(from_weights(model.state_dict(), model.config, dtype=BF16))


def partings(target: Target, between: Callable[[], None] = lambda: None) -> list[Parting]:
    """Where the answers part, over `PROMPTS`; `between` is called behind the plain ones."""
    options: dict[str, Any] = {"max_tokens": 16, "keep_logits": True}
    plain = [run(target, prompt, **options) for prompt in PROMPTS]
    between()
    found = []
    for prompt, one in zip(PROMPTS, plain, strict=True):
        drafter = ragged((*prompt, *one.tokens), VOCAB, [1, 4, 0, 2])
        other = run(target, prompt, drafter, k=4, **options)
        parting = first_difference(
            one.tokens, list(one.logits), other.tokens, list(other.logits), dtype=BF16
        )
        found += [] if parting is None else [parting]
    return found


def test_what_rounding_does_is_a_tie() -> None:
    assert {parting.label for parting in partings(bfloat16())} <= {"tie"}
    found = partings(RoundsOtherwise(bfloat16()))
    assert len(found) >= 3, "the rounding swapped too few tokens to say anything"
    assert {parting.label for parting in found} == {"tie"}


def test_a_wrong_mask_is_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows see the draft tokens behind them."""

    def plant() -> None:
        monkeypatch.setattr(Segment, "bias", lambda *args: None)

    found = partings(bfloat16(), plant)
    assert len(found) >= len(PROMPTS) // 2
    assert {parting.label for parting in found} == {"fault"}
    # The gap alone would have called each a tie: the wrong logits are as far off as it takes.
    assert all(parting.gap <= 2 * parting.pass_difference for parting in found)
