"""One answer by one method: the results and times of its rounds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from paceline.economics.stats import AcceptanceCounts


class RoundFacts(NamedTuple):
    """One round.

    Args:
        num_tokens: the tokens that became final.
        path_length: the drafted tokens on the longest path; for a chain, all of them.
        num_draft_tokens: all drafted nodes.
        num_accepted_tokens: of `num_tokens`, those that were drafted.
        num_rows: the rows of the target pass.
        draft_s, target_s, verify_s: host seconds.
        drafter: which one made the draft, if the method has several.
    """

    num_tokens: int
    path_length: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_rows: int
    draft_s: float
    target_s: float
    verify_s: float
    drafter: str = ""


@dataclass(frozen=True)
class Run:
    """One timed answer.

    Args:
        item: the place of the prompt in the workload, from 0.
        method: the place of the method, from 0; 0 is plain decoding.
        tokens: of the answer.
        finish_reason: "stop" or "length".
        num_prompt_tokens: the length of the prompt.
        rounds: in order.
        prefill_s: from the start until the prompt was in all caches, the draft model's included.
        decode_s: from there to the last token.
        peak_bytes: the peak memory of the process at the end of a round; None if unknown.
    """

    item: int
    method: int
    tokens: tuple[int, ...]
    finish_reason: str
    num_prompt_tokens: int
    rounds: tuple[RoundFacts, ...]
    prefill_s: float
    decode_s: float
    peak_bytes: int | None = None

    @cached_property
    def counts(self) -> AcceptanceCounts:
        """Acceptance by position."""
        return counts_of(self.rounds)

    @property
    def marks(self) -> str:
        """The fate of drafts, one character per token of the answer; see `marks_of`."""
        return marks_of(self.rounds)

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens per second of decoding, without the prefill; None without a token."""
        return len(self.tokens) / self.decode_s if self.tokens else None

    @property
    def total_s(self) -> float:
        """Prefill and decoding."""
        return self.prefill_s + self.decode_s

    @property
    def parts_s(self) -> dict[str, float]:
        """The time by part; `rest` is host time between the parts."""
        draft = sum(item.draft_s for item in self.rounds)
        target = sum(item.target_s for item in self.rounds)
        verify = sum(item.verify_s for item in self.rounds)
        return {
            "prefill": self.prefill_s,
            "draft": draft,
            "target": target,
            "verify": verify,
            "rest": max(0.0, self.decode_s - draft - target - verify),
        }


def counts_of(rounds: Iterable[RoundFacts]) -> AcceptanceCounts:
    """Acceptance by position, as `metrics.Metrics` counts it."""
    counts = AcceptanceCounts()
    for item in rounds:
        accepted = item.num_accepted_tokens
        # A block that the end of the answer cut at an accepted token has no rejection.
        tested = accepted if item.num_tokens == accepted else None
        counts = counts.add(item.path_length, accepted, tested)
    return counts


def marks_of(rounds: Iterable[RoundFacts]) -> str:
    """Where in the answer drafts were accepted, one character per token.

    `1` is an accepted draft token, `0` the correction after a rejection, `+` the bonus token after
    a draft that was accepted as a whole, and `-` the token of a round without a draft.

    Example:
        >>> marks_of([RoundFacts(3, 4, 4, 2, 5, 0, 0, 0), RoundFacts(1, 0, 0, 0, 1, 0, 0, 0)])
        '110-'
    """
    found = []
    for item in rounds:
        found.append("1" * item.num_accepted_tokens)
        if item.num_tokens > item.num_accepted_tokens:
            rejected = item.num_accepted_tokens < item.path_length
            found.append("0" if rejected else "+" if item.path_length else "-")
    return "".join(found)
