"""An index of n-grams, and the references that drafters search: token ids only."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from paceline.checks import token_ids
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput


class NgramIndex:
    """Where each n-gram was last (or first) followed by a token. Memory: one entry per n-gram.

    Args:
        min_n, max_n: the lengths that are indexed.
        newest: keep the last occurrence instead of the first.

    Example:
        >>> index = NgramIndex(1, 2, newest=False)
        >>> index.extend([5, 6, 7, 5, 6, 8])
        >>> index.after((5, 6)), index.after((8,))
        (2, None)
    """

    def __init__(self, min_n: int, max_n: int, *, newest: bool) -> None:
        self.tokens: list[int] = []
        self._min_n, self._max_n, self._newest = min_n, max_n, newest
        self._after: dict[tuple[int, ...], int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens. An n-gram enters the index when the token after it is known."""
        old = len(self.tokens)
        self.tokens += tokens
        for position in range(max(old, 1), len(self.tokens)):
            for n in range(self._min_n, min(self._max_n, position) + 1):
                gram = tuple(self.tokens[position - n : position])
                if self._newest:
                    self._after[gram] = position
                else:
                    self._after.setdefault(gram, position)

    def after(self, gram: tuple[int, ...]) -> int | None:
        """The position of the token that followed `gram`; None if it did not occur."""
        return self._after.get(gram)


def reference_ids(references: Any) -> tuple[tuple[int, ...], ...]:
    """References as tuples of token ids.

    Raises:
        InvalidInput: they are not sequences of token ids.

    Example:
        >>> reference_ids([[1, 2], (3,)])
        ((1, 2), (3,))
    """
    expected = "references must be sequences of token ids"
    if not isinstance(references, Iterable):
        raise InvalidInput(f"{expected}; they are {references!r:.80}")
    return tuple(token_ids(expected, reference) for reference in references)


def check_vocabulary(what: str, tokens: Sequence[int], target: TargetInfo) -> None:
    """Raise unless all tokens belong to the target's vocabulary.

    Args:
        what: whose tokens they are, for the message.

    Raises:
        InvalidInput: a token does not; the message names the first.
    """
    if not tokens or (min(tokens) >= 0 and max(tokens) < target.vocab_size):
        return
    outside = next(token for token in tokens if not 0 <= token < target.vocab_size)
    raise InvalidInput(
        f"{what} holds token {outside}; the vocabulary of {target.name} is 0 to "
        f"{target.vocab_size - 1}: was it encoded with another tokenizer?"
    )


class NgramPlaces:
    """Every position after each n-gram of a text, for some n. Memory: one entry per occurrence.

    Args:
        tokens: the text.
        sizes: the n that are indexed.

    Example:
        >>> places = NgramPlaces([5, 6, 7, 5, 6], sizes=(1, 2))
        >>> places.from_on((5, 6), 3), places.nearest((5, 6), 3), places.nearest((8,), 3)
        (5, 2, None)
    """

    def __init__(self, tokens: Sequence[int], sizes: Sequence[int]) -> None:
        self._places: dict[tuple[int, ...], list[int]] = {}
        for n in sizes:
            for end in range(n, len(tokens) + 1):
                self._places.setdefault(tuple(tokens[end - n : end]), []).append(end)

    def from_on(self, gram: tuple[int, ...], place: int) -> int | None:
        """The first position after `gram` that is not before `place`."""
        found = self._places.get(gram, ())
        at = bisect_left(found, place)
        return found[at] if at < len(found) else None

    def nearest(self, gram: tuple[int, ...], place: int) -> int | None:
        """The position after `gram` that is nearest to `place`; of two, the later one."""
        found = self._places.get(gram, ())
        at = bisect_left(found, place)
        return min(found[max(at - 1, 0) : at + 1], key=lambda p: (abs(p - place), -p), default=None)
