"""Draft with the target itself; the layers to skip are found while it decodes.

Source: Xia et al., SWIFT, arXiv 2410.06916. Their trees have side branches for less probable tokens
and a sampling path that is not exact; here the draft is a chain, and q is the distribution that
drew it.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from paceline.checks import require_finite, require_int
from paceline.core.drafts import Budget, Draft
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need, SkipSet
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetLayers, TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, DRAWN_CHAIN
from paceline.drafting.self_draft import SelfDraft, every_second, layers_of


@dataclass(frozen=True, slots=True)
class SwiftDrafter:
    """Draft with a part of the target's own layers, found for each request as it runs.

    It starts by skipping every second layer. After each round, once there is a window of the
    answer, it tries another random set of the same number of parts: how many tokens of the window
    would the remaining layers have predicted? The better set drafts from then on. The first and
    last layers are never skipped.

    Args:
        skip_ratio: the share of the parts, between the first and last layers, that it skips in its
            trials.
        window: the number of the answer's first tokens on which sets are compared.
        good_enough: the share of the window above which the search ends.
        max_failures: the search ends after this many tries in a row that were no better.
        max_tries: the search ends after this many tries.
        min_confidence: a draft ends after a token whose probability under q is below this; the
            token is kept.

    Raises:
        InvalidInput: a setting is outside its range.
    """

    name: ClassVar[str] = "swift"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LAYERS})
    drafts: ClassVar[DraftKinds] = DRAWN_CHAIN
    greedy_drafts: ClassVar[DraftKinds] = CHOSEN_CHAIN

    skip_ratio: float = 0.45
    window: int = 32
    good_enough: float = 0.95
    max_failures: int = 300
    max_tries: int = 1000
    min_confidence: float = 0.8

    def __post_init__(self) -> None:
        require_finite(self, "skip_ratio", self.skip_ratio, low=0.0, high=1.0)
        require_finite(self, "good_enough", self.good_enough, low=0.0, high=1.0)
        require_finite(self, "min_confidence", self.min_confidence, low=0.0, high=1.0)
        require_int("window", self.window, low=1)
        require_int("max_failures", self.max_failures, low=0)
        require_int("max_tries", self.max_tries, low=0)

    def open(self, target: TargetView, capacity: int) -> SwiftSession:
        """See `protocols.Drafter.open`."""
        return SwiftSession(self, layers_of(target, self.name))


class SwiftSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: SwiftDrafter, layers: TargetLayers) -> None:
        self._drafter, self._layers = drafter, layers
        self._draft = SelfDraft(layers)
        self._num_prompt_tokens = 0
        self._sets = random_sets(layers.num_layers, drafter.skip_ratio)
        self.skip = every_second(layers.num_layers)
        self.score: float | None = None
        self.tries = self.failures = 0

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        first = not self._draft.committed
        self._draft.observe(committed.tokens)
        if first:
            self._num_prompt_tokens = len(committed.tokens)
        elif self._searching():
            self._try()

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        return self._draft.chain(self.skip, budget, warp, noise, self._drafter.min_confidence)

    def close(self) -> None:
        """See `protocols.DraftSession.close`."""

    def _searching(self) -> bool:
        drafter = self._drafter
        answer = len(self._draft.committed) - self._num_prompt_tokens
        return (
            answer >= drafter.window
            and (self.score is None or self.score <= drafter.good_enough)
            and self.failures <= drafter.max_failures
            and self.tries < drafter.max_tries
        )

    def _try(self) -> None:
        """Compare one more set with the current one."""
        if self.score is None:
            self.score = self._agreement(self.skip)
        self.tries += 1
        candidate = next(self._sets)
        score = self._agreement(candidate)
        if score > self.score:
            self.skip, self.score, self.failures = candidate, score, 0
        else:
            self.failures += 1

    def _agreement(self, skip: SkipSet) -> float:
        """The share of the window's tokens that the remaining layers predict as most probable."""
        start, tokens = self._num_prompt_tokens, self._draft.committed
        window = tokens[start : start + self._drafter.window]
        said = self._layers.replay(start - 1, [tokens[start - 1], *window[:-1]], skip)
        hits = [a == b for a, b in zip(said.argmax(dim=-1).tolist(), window, strict=True)]
        return sum(hits) / len(hits)


def random_sets(num_layers: int, ratio: float) -> Iterator[SkipSet]:
    """Random skip sets of int(ratio * 2 (L - 2)) parts, without the first and the last layer.

    The sets are the same in every run. They do not bias the output, so they do not use the noise of
    the sequence.

    >>> one = next(random_sets(6, 0.45))
    >>> one.num_sublayers(6), min(one.attention | one.mlp) > 0, max(one.attention | one.mlp) < 5
    (9, True, True)
    """
    choose = random.Random(0)
    inner = range(1, num_layers - 1)
    parts = [(kind, layer) for kind in range(2) for layer in inner]
    count = int(ratio * len(parts))
    while True:
        chosen = choose.sample(parts, count)
        yield SkipSet(*(frozenset(n for kind, n in chosen if kind == k) for k in range(2)))
