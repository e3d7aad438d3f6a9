"""A corpus of token ids on disk with its suffix array, to look up what followed a sequence.

The file is in safetensors format: the tokens, with documents separated by a mark, and the positions
of all suffixes, sorted by their first 32 tokens. It is memory-mapped, not read.

Source: REST (2311.08252), section 3.1, whose datastore is a suffix array of 16-bit tokens.
"""

from __future__ import annotations

import json
import os
import struct
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from paceline.checks import reason_of
from paceline.errors import InvalidInput

FORMAT = "paceline datastore 1"

DEPTH = 32
"""The suffixes are sorted by this many tokens, so longer queries are not possible."""

MARK = 0xFFFFFFFF
"""The end mark of a document; not a token."""

Told = Callable[[int, int], None]
"""Called with the amount done and the total."""

Ids = NDArray[np.uint32]


class Found(NamedTuple):
    """A sequence of `length` tokens that occurs, at `first` to `last` of the sorted order."""

    length: int
    first: int
    last: int


class Corpus:
    """An open corpus. Create it with `Corpus.open` or `Corpus.of`; threads may share it.

    Args:
        tokens: the documents, with a `MARK` after each, and at least `DEPTH` marks at the end.
        order: the positions of all suffixes that begin with a token, sorted.
        about: the file's metadata: `tokenizer`, `fingerprint`, `num_documents`.
        path: the file, for messages.
    """

    def __init__(self, tokens: Ids, order: Ids, about: dict[str, str], path: Path | str) -> None:
        self.about, self.path = about, path
        self._tokens, self._order = tokens, order
        # Views that give plain integers, which bisection compares token by token.
        self._token_view, self._order_view = tokens.data, order.data

    @classmethod
    def of(cls, documents: Iterable[Sequence[int]], about: dict[str, str] | None = None) -> Corpus:
        """A corpus in memory.

        >>> corpus = Corpus.of([[1, 2, 3], [2, 3, 4]])
        >>> found = corpus.find([9, 2, 3], longest=16, shortest=1)
        >>> found, corpus.continuations(found, 2, 100).tolist()
        (Found(length=2, first=1, last=3), [[4, 4294967295], [4294967295, 2]])
        """
        pieces = [np.append(np.asarray(d, np.uint32), np.uint32(MARK)) for d in documents]
        tokens = np.concatenate([*pieces, np.full(DEPTH, MARK, np.uint32)])
        facts = {"num_documents": str(len(pieces)), "highest": str(_highest(tokens))}
        return cls(tokens, suffix_order(tokens), {**facts, **(about or {})}, "a corpus in memory")

    @classmethod
    def open(cls, path: str | Path) -> Corpus:
        """Memory-map a file written by `write`.

        Raises:
            InvalidInput: it does not exist, is something else, or is damaged.
        """
        path = Path(path).expanduser()
        try:
            with path.open("rb") as file:
                (size,) = struct.unpack("<Q", file.read(8))
                if size > 1 << 20:
                    raise ValueError
                head = json.loads(file.read(size))
            about = head["__metadata__"]
            if about["format"] != FORMAT:
                raise ValueError
        except OSError as error:
            raise InvalidInput(f"cannot read the datastore {path}: {error.strerror}") from error
        except (ValueError, KeyError, TypeError, struct.error):
            raise InvalidInput(
                f"{path} is not a datastore; build one with `paceline datastore build FILE -o "
                "STORE`"
            ) from None
        try:
            tokens, order = (_mapped(path, head[name], 8 + size) for name in ("tokens", "order"))
            end = tokens[-DEPTH:]
            if len(end) < DEPTH or (end != MARK).any() or "highest" not in about:
                raise ValueError
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            raise InvalidInput(
                f"the datastore {path} is damaged: its length or its end is not what was written; "
                "build it again"
            ) from None
        return cls(tokens, order, about, path)

    def write(self, path: Path) -> None:
        """Write it to a file atomically.

        Raises:
            InvalidInput: the file cannot be written.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import save_file

        beside = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            save_file(
                {"tokens": self._tokens, "order": self._order},
                beside,
                metadata={**self.about, "format": FORMAT},
            )
            beside.replace(path)
        except (OSError, SafetensorError) as error:
            raise InvalidInput(f"cannot write {path}: {reason_of(error)}") from error
        finally:
            beside.unlink(missing_ok=True)

    def __len__(self) -> int:
        """The number of tokens."""
        return len(self._order)

    @property
    def num_bytes(self) -> int:
        """The size of the tokens and their order."""
        return self._tokens.nbytes + self._order.nbytes

    @property
    def highest(self) -> int:
        """The highest token; -1 if there is none."""
        return int(self.about["highest"])

    def find(self, tail: Sequence[int], *, longest: int, shortest: int) -> Found | None:
        """The longest suffix of `tail` that occurs, of `shortest` to `longest` tokens.

        If a sequence occurs, so do its suffixes, so the length is found by bisection too.
        """
        low, high = shortest - 1, min(longest, len(tail))
        best = None
        while low < high:
            length = (low + high + 1) // 2
            first, last = self._places(list(tail[-length:]))
            if first < last:
                low, best = length, Found(length, first, last)
            else:
                high = length - 1
        return best

    def continuations(self, found: Found, count: int, most: int) -> Ids:
        """The `count` tokens after each occurrence of a sequence, sorted; `[places, count]`.

        If there are more than `most` occurrences, `most` evenly spaced ones are taken.

        Raises:
            InvalidInput: the file is damaged.
        """
        number = found.last - found.first
        ranks = np.arange(number) if number <= most else np.arange(most) * number // most
        places = self._order.take(found.first + ranks).astype(np.int64) + found.length
        if int(places.max(initial=0)) + count > len(self._tokens):
            raise InvalidInput(f"the datastore {self.path} is damaged; build it again")
        # One token of all occurrences at a time, which is also how they are compared.
        lines: Ids = self._tokens.take(places + np.arange(count)[:, None])
        return lines.T

    def _places(self, sequence: list[int]) -> tuple[int, int]:
        tokens, length = self._token_view, len(sequence)

        def begin(place: int) -> list[int]:
            return tokens[place : place + length].tolist()

        first = bisect_left(self._order_view, sequence, key=begin)
        if first == len(self) or begin(self._order_view[first]) != sequence:
            return first, first
        return first, bisect_right(self._order_view, sequence, lo=first, key=begin)


def suffix_order(tokens: Ids, told: Told | None = None) -> Ids:
    """The positions of the suffixes that begin with a token, sorted by their first 32 tokens.

    By doubling: the order by the first h tokens gives the order by 2 h. Equal suffixes stay in
    order of position. Takes about 40 bytes per token.

    Args:
        tokens: the tokens, with `MARK`s, which are the highest values.
        told: called before each doubling.

    Example:
        >>> suffix_order(np.array([2, 1, 2, MARK], np.uint32)).tolist()
        [1, 0, 2]
    """
    doublings = DEPTH.bit_length() - 1
    _, rank = np.unique(tokens, return_inverse=True)
    rank = rank.astype(np.int64)
    order = np.argsort(rank, kind="stable")
    for step in range(doublings):
        if told is not None:
            told(step, doublings)
        half = 1 << step
        behind = np.zeros_like(rank)
        behind[:-half] = rank[half:] + 1
        key = rank * (len(rank) + 1) + behind
        order = np.argsort(key, kind="stable")
        ordered = key[order]
        rank[order] = np.concatenate([[0], np.cumsum(ordered[1:] != ordered[:-1])])
    if told is not None:
        told(doublings, doublings)
    found: Ids = order[tokens[order] != MARK].astype(np.uint32)
    return found


def _highest(tokens: Ids) -> int:
    return int(tokens[tokens != MARK].max(initial=0)) if (tokens != MARK).any() else -1


def _mapped(path: Path, entry: Any, base: int) -> Ids:
    """A tensor of a safetensors file, memory-mapped.

    Raises:
        ValueError: it is not a row of 32-bit numbers, or the file ends before it does.
    """
    (count,) = entry["shape"]
    begin, end = entry["data_offsets"]
    if entry["dtype"] != "U32" or end - begin != 4 * count or count < 0:
        raise ValueError
    if path.stat().st_size < base + end:
        raise ValueError
    if not count:
        return np.empty(0, np.uint32)
    mapped = np.memmap(path, np.dtype("<u4"), "r", base + begin, (count,))
    in_own_order: Ids = mapped.astype(np.uint32, copy=False)  # a copy on big-endian machines only
    return in_own_order
