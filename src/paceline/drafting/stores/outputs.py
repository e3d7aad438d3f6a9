"""Past outputs: what followed what in previous answers, in bounded memory.

On disk they are a log: each output is appended as a whole with its length and checksum, so several
processes can write to one file and a crash loses at most one output.
"""

from __future__ import annotations

import logging
import os
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from threading import RLock

from paceline.checks import require_int
from paceline.core.target import TargetInfo
from paceline.drafting.stores.suffixes import SuffixCounts
from paceline.errors import InvalidInput

log = logging.getLogger("paceline")

MAGIC = b"paceline outputs 1\n"
_FRAME = struct.Struct("<II")
"""Before each output: its number of tokens and their CRC-32."""


class PastOutputs:
    """The latest outputs, shared by the sequences of any number of drafters and threads.

    Half of `capacity` is filled at a time; when it is full, the older half is dropped. So the store
    holds the latest `capacity / 2` to `capacity` tokens, and of an output longer than half of it
    only the end. Memory: about 200 bytes per token.

    Args:
        path: a file in which the outputs are kept; None keeps them in memory only.
        capacity: the maximum number of tokens.
        max_depth: the maximum length of a match and of a draft.

    Raises:
        InvalidInput: a setting is outside its range, or the file is not such a store, is damaged,
            or cannot be read or written.

    Example:
        >>> store = PastOutputs(capacity=1000)
        >>> store.add([1, 2, 3])
        >>> len(store)
        3
    """

    def __init__(
        self, path: str | Path | None = None, *, capacity: int = 100_000, max_depth: int = 64
    ) -> None:
        self.capacity = require_int("capacity", capacity, low=2)
        self.max_depth = require_int("max_depth", max_depth, low=1)
        self.lock = RLock()
        """Held while the parts are read or changed."""
        self._counts = [SuffixCounts(2 * max_depth)]
        self._sizes = [0]
        self._highest = -1
        self._log = None if path is None else OutputLog(Path(path))
        if self._log is not None:
            for tokens in self._log.read(capacity):
                self._insert(tokens)

    @property
    def parts(self) -> Sequence[SuffixCounts]:
        """The counts, older and newer. Hold `lock` while you use them."""
        return self._counts

    def __len__(self) -> int:
        """The number of tokens."""
        return sum(self._sizes)

    def add(self, tokens: Sequence[int]) -> None:
        """Add an output. A failure to write the file is logged."""
        if not tokens:
            return
        with self.lock:
            self._insert(tokens)
        if self._log is not None:
            try:
                self._log.append(tokens)
            except OSError as error:
                log.warning(
                    "the output was not stored: cannot write %s (%s)",
                    self._log.path,
                    error.strerror,
                )

    def check(self, target: TargetInfo) -> None:
        """Raise unless the tokens belong to the target's vocabulary.

        Raises:
            InvalidInput: one does not.
        """
        if self._highest >= target.vocab_size:
            raise InvalidInput(
                f"the store of past outputs holds token {self._highest}; the vocabulary of "
                f"{target.name} is 0 to {target.vocab_size - 1}: use one store for each tokenizer"
            )

    def _insert(self, tokens: Sequence[int]) -> None:
        half = max(self.capacity // 2, 1)
        tokens = tokens[-half:]
        if self._sizes[-1] + len(tokens) > half:
            # The clock continues, so that recency is comparable across both halves.
            clock = self._counts[-1].clock
            self._counts = [self._counts[-1], SuffixCounts(2 * self.max_depth, clock)]
            self._sizes = [self._sizes[-1], 0]
        newest = self._counts[-1]
        newest.begin()
        newest.extend(tokens)
        self._sizes[-1] += len(tokens)
        self._highest = max(self._highest, *tokens)


class OutputLog:
    """A file to which outputs are appended one by one.

    Args:
        path: the file; it is created, with its folder, if it does not exist.

    Raises:
        InvalidInput: it cannot be created or is something else.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.expanduser()

    def read(self, capacity: int) -> list[array[int]]:
        """The latest outputs, at most `capacity` tokens. Shortens a file that has outgrown that.

        Raises:
            InvalidInput: the file is not a store of outputs, is damaged, or cannot be read.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self._locked():
                if not self.path.exists():
                    self.path.write_bytes(MAGIC)
                data = self.path.read_bytes()
                if not data.startswith(MAGIC):
                    raise InvalidInput(
                        f"{self.path} is not a store of past outputs; give another path, or "
                        "remove it"
                    )
                outputs, whole = self._frames(data)
                kept = _last(outputs, capacity)
                if whole < len(data) or sum(map(len, outputs)) > 2 * capacity:
                    self._rewrite(kept)
        except OSError as error:
            raise InvalidInput(
                f"cannot use {self.path} as a store of past outputs: {error.strerror or error}"
            ) from error
        return kept

    def append(self, tokens: Iterable[int]) -> None:
        """Append an output.

        Raises:
            OSError: it cannot be written; the file is then unchanged.
        """
        frame = _frame(tokens)
        with self._locked(), self.path.open("r+b") as file:
            end = file.seek(0, os.SEEK_END)
            try:
                file.write(frame)
                file.flush()
            except OSError:
                file.truncate(end)
                raise

    def _frames(self, data: bytes) -> tuple[list[array[int]], int]:
        """The outputs, and the number of complete bytes: a crash may leave part of one."""
        outputs, position = [], len(MAGIC)
        while position + _FRAME.size <= len(data):
            count, checksum = _FRAME.unpack_from(data, position)
            end = position + _FRAME.size + 4 * count
            body = data[position + _FRAME.size : end]
            if end > len(data):
                break
            if zlib.crc32(body) != checksum:
                raise InvalidInput(
                    f"the store of past outputs {self.path} is damaged at byte {position}; remove "
                    "it to start again"
                )
            outputs.append(_native(array("I", body)))
            position = end
        return outputs, position

    def _rewrite(self, outputs: Iterable[array[int]]) -> None:
        beside = self.path.with_name(f".{self.path.name}.new")
        beside.write_bytes(MAGIC + b"".join(map(_frame, outputs)))
        beside.replace(self.path)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        from filelock import FileLock

        with FileLock(self.path.with_name(f".{self.path.name}.lock")):
            yield


def _last(outputs: Sequence[array[int]], capacity: int) -> list[array[int]]:
    """The latest outputs with at most `capacity` tokens."""
    total, first = 0, len(outputs)
    while first and total + len(outputs[first - 1]) <= capacity:
        first -= 1
        total += len(outputs[first])
    return list(outputs[first:])


def _frame(tokens: Iterable[int]) -> bytes:
    body = _native(array("I", tokens)).tobytes()
    return _FRAME.pack(len(body) // 4, zlib.crc32(body)) + body


def _native(tokens: array[int]) -> array[int]:
    """From little-endian to the machine's byte order, or back."""
    if sys.byteorder == "big":
        tokens.byteswap()
    return tokens
