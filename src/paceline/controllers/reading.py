"""Whether a draft model should read the text, all of it or its end, or not at all.

A draft model has to read the prompt before it can draft. That is time that a user waits for. It
pays where the rest of the answer is long enough for what drafting saves. A model that reads the
last tokens alone drafts from a shorter context: it costs little and is right less often.
"""

from __future__ import annotations

from typing import NamedTuple

from paceline.core.target import Opening

WINDOW = 64
"""The tokens that a draft model reads where it is not to read all. They hold the end of the
question. By a model of a quarter of the target's weights, at 2 % of a pass for each row, reading
them takes a third of a pass, so that a single accepted token pays for it."""

CONTEXT_ODDS = 2.0
"""By how much the odds of acceptance rise when a draft model sees all of a long text instead of the
last `WINDOW` tokens, before it is known: a guess, from .8 to .67, say. In simulated answers of 16
and 64 tokens a true factor of 1 is worth 31 % over plain decoding, 2 are worth 26 % and 4 are worth
21 %, so that little depends on it."""

TYPICAL_ANSWER = 64
"""The tokens that an answer is expected to go on for when it begins, where its length is not
known. Each token makes it likely that it is one of the longer ones."""

_UNPROVEN = 8
"""The tested tokens below which acceptance is a guess."""
_TRUST = 1 / 3
"""A guess of what drafting saves counts by this share."""
TRIFLE = 0.05
"""Reading that takes less than this, in passes, is not weighed."""


def expected_rest(opening: Opening, num_answer_tokens: int) -> float:
    """How many tokens an answer is expected to go on for.

    Args:
        opening: what is known of its length.
        num_answer_tokens: how many it has.

    Example:
        >>> expected_rest(Opening(max_tokens=16), 4), expected_rest(Opening(max_tokens=2000), 100)
        (12, 164)
        >>> expected_rest(Opening(max_tokens=200, min_tokens=200), 0)
        200
    """
    guess = TYPICAL_ANSWER + num_answer_tokens
    if opening.max_tokens is not None:
        guess = min(guess, opening.max_tokens - num_answer_tokens)
    return max(guess, opening.min_tokens - num_answer_tokens, 1)


class Reader:
    """What a draft model has read of the text, as `DraftModel` goes about it.

    Args:
        num_tokens: the prompt's; 0 for a drafter that reads along.
    """

    def __init__(self, num_tokens: int) -> None:
        self.num_tokens = num_tokens
        """The text so far."""
        self.behind = num_tokens
        """The tokens that it has not read."""
        self.is_partial = False
        """Whether it reads from a later token than the first."""

    def missing(self, limit: int | None) -> int:
        """The tokens that it reads before it drafts, under `Budget.max_catch_up`."""
        if limit is None:
            return self.num_tokens if self.is_partial else self.behind
        return min(self.behind, limit)

    def read(self, limit: int | None) -> int:
        """It drafts now; the tokens that it reads first."""
        missing = self.missing(limit)
        self.is_partial = limit is not None and (self.is_partial or self.behind > limit)
        self.behind = 0
        return missing

    def add(self, num_tokens: int) -> None:
        """The text went on."""
        self.num_tokens += num_tokens
        self.behind += num_tokens

    def usual_limit(self) -> int | None:
        """The limit under which it goes on as it is: a short context stays one."""
        return WINDOW if self.is_partial else None


class Savings(NamedTuple):
    """The passes that a draft model saves for each token of the answer."""

    all: float
    """With all of the text read."""
    part: float
    """With a short context."""
    num_tested: int
    """The tested tokens on which that rests."""


class Reading(NamedTuple):
    """What a draft model is to read: a limit for `Budget.max_catch_up`, and passes it takes."""

    limit: int | None
    passes: float


def choose_reading(reader: Reader, price: float, rest: float, saves: Savings) -> Reading | None:
    """The way of reading by which most is saved over the rest of the answer.

    Args:
        reader: where the model is.
        price: passes for each token that it reads.
        rest: the tokens that the answer is expected to go on for.
        saves: what drafting saves.

    Returns:
        None where it is not to read at all.

    Example:
        >>> prompt, saves = Reader(1000), Savings(0.5, 0.3, 0)
        >>> [choose_reading(prompt, 0.01, rest, saves) for rest in (4, 16, 256)]
        [None, Reading(limit=64, passes=0.64), Reading(limit=None, passes=10.0)]
    """
    usual = Reading(reader.usual_limit(), price * reader.missing(reader.usual_limit()))
    if usual.passes <= TRIFLE and not reader.is_partial:
        return usual
    whole = Reading(None, price * reader.missing(None))
    part = Reading(WINDOW, price * reader.missing(WINDOW))
    trust = _TRUST if saves.num_tested < _UNPROVEN else 1.0
    by_whole, by_part = trust * rest * saves.all, trust * rest * saves.part
    if reader.is_partial:  # how much better it would be with all of the text is a guess
        by_whole = by_part + _TRUST * max(by_whole - by_part, 0.0)
    worth = {whole: by_whole - whole.passes, part: by_part - part.passes}
    best = max(worth, key=lambda reading: worth[reading])
    return best if worth[best] > 0 or best.passes <= TRIFLE else None
