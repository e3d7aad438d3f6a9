"""Does a decoder give the logits of the model that it runs? Tested by passes, not by name.

A model may keep state that is not in its keys and values, use unusual masks, or take its positions
from somewhere else. Flags and class names are often wrong about that, or say nothing
(transformers #46937). So the probe appends, scores a tree, commits, cuts, appends something else
and compares every row with a plain pass of the whole sequence.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import inf, isnan
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.targets.cached import CachedTarget

LENGTH = 6
"""The length of a probed sequence. Two of them share their first half."""

TOLERANCE = {torch.float64: 1e-8, torch.float32: 5e-4, torch.float16: 2e-2, torch.bfloat16: 1e-1}
"""The largest difference that rounding explains in any model, as a share of the logits' spread.

Between passes of different shapes it was up to 3e-5 in float32. In bfloat16 it was mostly below
.03, and up to 1.4 in a trained model whose text began without a start token. For larger differences
in such a format `rounding.py` measures how much the rounding of this model explains."""

LEAK = {torch.float64: 1e-9, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}
"""The same between passes of one shape. It was 0, and 4e-6 in float32 in mixtures of experts, whose
products depend on which tokens choose which expert."""


def probe_tokens(vocab_size: int, start: int | None = None) -> list[list[int]]:
    """Two sequences, from the middle of the vocabulary, where no special tokens are.

    They begin with the model's start token if it has one: without it, rounding errors of a trained
    model are much larger.

    >>> probe_tokens(64)
    [[16, 20, 24, 28, 32, 36], [16, 20, 24, 40, 44, 48]]
    >>> probe_tokens(64, start=1)
    [[1, 20, 24, 28, 32, 36], [1, 20, 24, 40, 44, 48]]
    """
    step = max(1, vocab_size // 16)
    ids = [(vocab_size // 4 + step * i) % vocab_size for i in range(LENGTH + LENGTH // 2)]
    if start is not None and 0 <= start < vocab_size:
        ids[0] = start
    return [ids[:LENGTH], ids[: LENGTH // 2] + ids[LENGTH:]]


@dataclass(frozen=True, slots=True)
class Difference:
    """What the probe found: the reason, the error of the logits, and how much rounding explains."""

    reason: str
    error: float
    tolerance: float


def probe_target(
    target: CachedTarget, tokens: Sequence[Sequence[int]], truth: Tensor, tolerance: Tensor | float
) -> Difference | None:
    """Compare `target` with the model that it runs.

    Costs three passes of the target, and more only to find out what is wrong.

    Args:
        target: the decoder under test and its caches.
        tokens: see `probe_tokens`.
        truth: the logits `[2, LENGTH, V]` of a plain pass of the model over `tokens`.
        tolerance: the distance that rounding explains, for all rows or for each `[2, LENGTH]`.

    Returns:
        The largest difference if rounding does not explain it, or None.
    """
    (one, other), half = tokens, LENGTH // 2
    rows = truth.to(torch.promote_types(truth.dtype, torch.float32)).cpu()
    allowed = torch.as_tensor(tolerance).expand(rows.shape[:-1])

    def worst(found: Iterable[Tensor], places: Iterable[tuple[int, int]]) -> _Worst:
        """The row furthest beyond its tolerance; NaN counts as the worst."""
        errors = [
            _Worst(distance(row, rows[place]), float(allowed[place]))
            for row, place in zip(found, places, strict=True)
        ]
        return max(errors, key=lambda one: inf if isnan(one.error) else one.error / one.tolerance)

    slot = target.open(LENGTH)
    prefill(target, slot, one[: half - 1])
    tree = Draft((one[3], other[3], other[4], one[4]), parents=(-1, -1, 1, 0))
    in_tree = worst(
        target.score([Work(slot, [one[2]], tree)])[0].logits,
        [(0, 2), (0, 3), (1, 3), (1, 4), (0, 4)],
    )
    target.commit(slot, (1, 2))
    target.rollback(slot, half)
    cut = target.score([Work(slot, [one[3]], Draft(tuple(one[4:])))])[0].logits
    after_cut = worst(cut, [(0, n) for n in range(half, LENGTH)])
    target.close(slot)
    if in_tree.explained and after_cut.explained:
        return None

    whole = worst(_rows(target, one, 0), [(0, n) for n in range(LENGTH)])
    in_parts = worst(_rows(target, one, half), [(0, n) for n in range(half, LENGTH)])
    found = (
        (
            whole,
            "run with Paceline's attention and positions, it does not give the logits that it "
            "gives by itself",
        ),
        (
            in_parts,
            "its state cannot be carried on from pass to pass, nor rolled back: it keeps more than "
            "keys and values (recurrent or convolutional layers?), or counts positions by itself",
        ),
        (in_tree, "it does not take positions or branches of a draft as they are given"),
        (after_cut, "its state cannot be rolled back"),
    )
    wrong, reason = next((item for item in found if not item[0].explained), found[-1])
    return Difference(reason, wrong.error, wrong.tolerance)


class _Worst(NamedTuple):
    error: float
    tolerance: float

    @property
    def explained(self) -> bool:
        return self.error <= self.tolerance  # not `>`: NaN must not pass


def _rows(target: CachedTarget, tokens: Sequence[int], cached: int) -> Tensor:
    """The logits after `tokens[cached:]`, scored as one chain on a fresh slot."""
    slot = target.open(len(tokens))
    prefill(target, slot, tokens[:cached])
    draft = Draft(tuple(tokens[cached + 1 :]))
    logits = target.score([Work(slot, [tokens[cached]], draft)])[0].logits
    target.close(slot)
    return logits


def distance(found: Tensor, expected: Tensor) -> float:
    """The error of a row of logits, as a share of the spread of the expected row.

    >>> distance(torch.tensor([1.0, 3.5]), torch.tensor([1.0, 3.0]))
    0.3535533845424652
    """
    expected = expected.to(found.dtype)
    # Equal infinities are no difference: they belong to tokens that a model rules out.
    off = torch.where(found == expected, 0, found - expected)
    finite = expected[expected.isfinite()]
    return float(off.norm() / (finite - finite.mean()).norm())
