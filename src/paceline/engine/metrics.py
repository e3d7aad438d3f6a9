"""A fold over events: what speculation did and where the time went.

Field names are those of vLLM's per-request metrics where it has them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from paceline.core.events import Event, Prefilled, Round
from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts


@dataclass(frozen=True, slots=True)
class Metrics:
    """What the events of one sequence, or of several, add up to. Immutable.

    Args:
        counts: acceptance by position on the drafted path; for a tree, by depth.
        num_draft_tokens: all drafted nodes that the target scored.
        num_tokens: tokens that rounds made final.
        prefill_s, draft_s, target_s, verify_s: host seconds. A pass that several sequences share
            counts in equal parts.

    Example:
        >>> Metrics().spec()["draft_acceptance_rate"] is None
        True
    """

    counts: AcceptanceCounts = field(default_factory=AcceptanceCounts)
    num_draft_tokens: int = 0
    num_tokens: int = 0
    prefill_s: float = 0.0
    draft_s: float = 0.0
    target_s: float = 0.0
    verify_s: float = 0.0

    @classmethod
    def of(cls, events: Iterable[Event]) -> Metrics:
        """Add up events."""
        metrics = cls()
        for event in events:
            metrics = metrics.add(event)
        return metrics

    def add(self, event: Event) -> Metrics:
        """These metrics and one more event."""
        if isinstance(event, Prefilled):
            return replace(self, prefill_s=self.prefill_s + event.seconds)
        if not isinstance(event, Round):
            return self
        accepted = event.num_accepted_tokens
        own = 1 - event.prefill_rows / event.pass_rows  # the rest is counted with the prompts
        # A block that the end of the answer cut at an accepted token rejected nothing.
        tested = accepted if len(event.tokens) == accepted else None
        return Metrics(
            counts=self.counts.add(event.max_path_length, accepted, tested),
            num_draft_tokens=self.num_draft_tokens + event.num_draft_tokens,
            num_tokens=self.num_tokens + len(event.tokens),
            prefill_s=self.prefill_s,
            draft_s=self.draft_s + event.draft_seconds,
            target_s=self.target_s + event.target_seconds * own / event.num_sequences,
            verify_s=self.verify_s + event.verify_seconds,
        )

    def __add__(self, other: Metrics) -> Metrics:
        """Both together: pooled, so that every round weighs the same."""
        return Metrics(
            counts=self.counts + other.counts,
            num_draft_tokens=self.num_draft_tokens + other.num_draft_tokens,
            num_tokens=self.num_tokens + other.num_tokens,
            prefill_s=self.prefill_s + other.prefill_s,
            draft_s=self.draft_s + other.draft_s,
            target_s=self.target_s + other.target_s,
            verify_s=self.verify_s + other.verify_s,
        )

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens a target pass, the bonus included, so plain decoding is 1.0; None without one."""
        return stats.mean_acceptance_length(self.counts)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted / drafted tokens, including those after a rejection; None without a draft."""
        if not self.num_draft_tokens:
            return None
        return self.counts.num_accepted_tokens / self.num_draft_tokens

    @property
    def acceptance_histogram(self) -> tuple[int, ...] | None:
        """At place a: the drafts of which a tokens were accepted; None without a draft."""
        if not self.counts.num_drafts:
            return None
        reached = (self.counts.num_drafts, *self.counts.accepted, 0)
        return tuple(at - beyond for at, beyond in pairwise(reached))

    def spec(self) -> dict[str, Any]:
        """What speculation did, as plain JSON values."""
        counts = self.counts
        per_position = stats.acceptance_rate_per_position(counts)
        histogram = self.acceptance_histogram
        return {
            "num_rounds": counts.rounds,
            "num_drafts": counts.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": counts.num_accepted_tokens,
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_rate_per_position": list(per_position) if per_position else None,
            "acceptance_histogram": list(histogram) if histogram else None,
        }
