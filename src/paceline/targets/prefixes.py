"""What a target keeps of texts that it has read, for others that begin the same.

A text is kept in the chunks in which it was read, each under the whole text up to its end. Another
sequence takes a chunk instead of a pass over it, and holds what that pass would have computed.
Today it takes a copy: a pass is saved, and memory is not. A pool of blocks would share the rows
themselves under the same interface.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from threading import RLock

from paceline.checks import require_int
from paceline.targets.slot import Slot
from paceline.targets.state.protocol import Saved


class PrefixStore:
    """See `core.protocols.Prefixes`. Several threads may use one.

    Of what nobody has used for the longest time the ends of texts go first, since without its
    beginning the rest of a text is of no use.

    Args:
        max_bytes: how much is kept; 0 keeps nothing, except while somebody has it `held`.
    """

    def __init__(self, max_bytes: int = 0) -> None:
        self._kept: OrderedDict[bytes, Saved] = OrderedDict()
        self._max_bytes, self._holders, self._lock = 0, 0, RLock()
        self.num_bytes = self.num_asked_tokens = self.num_found_tokens = 0
        self.resize(max_bytes)

    @property
    def is_on(self) -> bool:
        """See `core.protocols.Prefixes`."""
        return self._max_bytes > 0 or self._holders > 0

    def resize(self, max_bytes: int) -> None:
        """See `core.protocols.Prefixes`."""
        with self._lock:
            self._max_bytes = require_int("max_bytes", max_bytes, low=0)
            self._shrink()

    @contextmanager
    def held(self) -> Generator[None]:
        """See `core.protocols.Prefixes`."""
        with self._lock:
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                self._shrink()

    def remember(self, slot: Slot, start: int, end: int | None = None) -> None:
        """See `core.protocols.Prefixes`."""
        end = slot.state.length if end is None else end
        if not self.is_on or start >= end:
            return
        key = _key(slot.text[:end], start)
        with self._lock:
            if key not in self._kept:
                saved = slot.state.save(start, end)
                self._kept[key] = saved
                self.num_bytes += saved.num_bytes
            self._touch(slot, key)
            self._shrink()

    def recall(self, slot: Slot, tokens: Sequence[int]) -> bool:
        """See `core.protocols.Prefixes`."""
        if not self.is_on or not tokens:
            return False
        key = _key([*slot.text, *tokens], slot.state.length)
        with self._lock:
            saved = self._kept.get(key)
            self.num_asked_tokens += len(tokens)
            if saved is None:
                return False
            self.num_found_tokens += len(tokens)
            self._touch(slot, key)
        slot.forget()
        slot.state.load(saved)
        slot.append(tokens)
        return True

    def _touch(self, slot: Slot, key: bytes) -> None:
        """Used now: the beginning of a slot's text last of all, so that it goes last."""
        slot.prefixes.append(key)
        for used in reversed(slot.prefixes):
            if used in self._kept:
                self._kept.move_to_end(used)

    def _shrink(self) -> None:
        most = self._max_bytes
        if self._holders and not most:
            return
        while self.num_bytes > most:
            self.num_bytes -= self._kept.popitem(last=False)[1].num_bytes


def _key(text: Sequence[int], start: int) -> bytes:
    """Names the rows from `start` on of a text; no two texts have one name."""
    return blake2b(array("q", [start, *text]).tobytes()).digest()
