"""How often each sequence of tokens occurs in some texts, and what follows it.

A suffix automaton, built token by token in amortised constant time. A state represents all
sequences that end at the same positions. Following the links from a state visits ever shorter
suffixes of it, and a transition leads to the sequence extended by one token. So one walk over the
links answers "what followed the last m tokens" for every m at once, and lengths with the same
answer share a state.

Source: Blumer et al., "The smallest automaton recognizing the subwords of a text" (1985), with
counts and several texts. SuffixDecoding (2411.04975) answers these queries with a trie.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import NamedTuple

_NONE = 0xFFFFFFFF
"""Not a token: the value in `_token` if a state has no transition, or several."""

MANY = 32
"""If more different tokens than this followed a sequence, the frequent ones are remembered."""

Node = tuple[int, ...]
"""A sequence of tokens: its state in each of several automata, 0 if it does not occur."""


_Ranked = tuple[int, int, int, Node]
"""The sort key of a follower: minus its count, minus its last time, its token and node."""


class Follower(NamedTuple):
    """A token that followed a sequence: how often, and the extended sequence."""

    token: int
    times: int
    node: Node


class _Known(NamedTuple):
    """The result of a scan of all transitions of a state when it had occurred `times` times.

    The `tokens` are those that led to at least `least` occurrences then. A rarer one can have
    occurred at most once more for each new occurrence of the state, so until that is often enough,
    none is missed.
    """

    least: float
    times: int
    tokens: list[int]


class SuffixCounts:
    """The counts of every sequence of at most `depth` tokens in the added texts.

    Args:
        depth: the maximum length of counted sequences.

    Example:
        >>> counts = SuffixCounts(8)
        >>> counts.extend([1, 2, 1, 3, 1, 2])
        >>> matches([counts], [5, 1])
        [(1, (1,))]
        >>> occurrences([counts], (1,)), followers([counts], (1,), 0.5)
        (3, [Follower(token=2, times=2, node=(2,))])
    """

    def __init__(self, depth: int, clock: int = 0) -> None:
        self.depth, self.clock = depth, clock
        # State 0 is the empty sequence. Arrays, since there are up to two states per token.
        self.length, self.link = array("I", [0]), array("i", [-1])
        self.count, self.recent = array("I", [0]), array("Q", [0])
        # Most states have one transition; those with several keep them all in `_several`.
        self._token, self._target = array("I", [_NONE]), array("I", [0])
        self._several: dict[int, dict[int, int]] = {}
        self._known: dict[int, _Known] = {}
        self.begin()

    def begin(self) -> None:
        """Start another text: what is appended does not follow the previous text."""
        self._whole = 0  # the state of the text so far
        self._tail, self._tail_length = 0, 0  # the state of its last `depth` tokens

    def extend(self, tokens: Iterable[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(token)
            self._count(token)

    def step(self, state: int, token: int) -> int:
        """The state extended by one token; 0 if that sequence does not occur."""
        if self._token[state] == token:
            return self._target[state]
        several = self._several.get(state)
        return several.get(token, 0) if several is not None else 0

    def frequent(self, state: int, least: float) -> Iterable[tuple[int, int]]:
        """The tokens that followed at least `least` times, and the states that they lead to."""
        count, token = self.count, self._token[state]
        if token != _NONE:
            after = self._target[state]
            return ((token, after),) if count[after] >= least else ()
        several = self._several.get(state)
        if several is None:
            return ()
        if len(several) <= MANY or least <= 2:
            return [(token, after) for token, after in several.items() if count[after] >= least]
        known = self._known.get(state)
        # A token follows each occurrence at most once, including the last one before the scan.
        if known is None or known.least + count[state] - known.times + 1 > least:
            half = least / 2
            tokens = [token for token, after in several.items() if count[after] >= half]
            known = self._known[state] = _Known(half, count[state], tokens)
        return [(token, several[token]) for token in known.tokens if count[several[token]] >= least]

    def suffixes(self, tokens: Iterable[int]) -> list[tuple[int, int]]:
        """The longest suffix of `tokens` that occurs, and shorter ones that occur elsewhere too.

        Returns:
            (length, state), the longest first; all lengths down to the next one have the same
            state.
        """
        state = length = 0
        for token in tokens:
            after = self.step(state, token)
            while not after and state:
                state = self.link[state]
                length = self.length[state]
                after = self.step(state, token)
            state, length = after, length + 1 if after else 0
        found = []
        while state:
            found.append((length, state))
            state = self.link[state]
            length = self.length[state]
        return found

    def _append(self, token: int) -> None:
        """Add the states for the text extended by one token."""
        last = self._whole
        known = self.step(last, token)
        if known:  # an earlier text began in the same way
            fits = self.length[known] == self.length[last] + 1
            self._whole = known if fits else self._split(last, token, known)
            return
        self._whole = new = self._state(self.length[last] + 1, 0, 0, 0)
        state = last
        while state >= 0 and not (known := self.step(state, token)):
            self._set(state, token, new)
            state = self.link[state]
        if state >= 0:
            fits = self.length[known] == self.length[state] + 1
            self.link[new] = known if fits else self._split(state, token, known)

    def _split(self, state: int, token: int, target: int) -> int:
        """Give the shorter sequences of `target` their own state: they end at one more position."""
        new = self._state(
            self.length[state] + 1,
            self.link[target],
            self.count[target],
            self.recent[target],
        )
        self._token[new], self._target[new] = self._token[target], self._target[target]
        if target in self._several:
            self._several[new] = dict(self._several[target])
        self.link[target] = new
        while state >= 0 and self.step(state, token) == target:
            self._set(state, token, new)
            state = self.link[state]
        return new

    def _state(self, length: int, link: int, count: int, recent: int) -> int:
        self.length.append(length)
        self.link.append(link)
        self.count.append(count)
        self.recent.append(recent)
        self._token.append(_NONE)
        self._target.append(0)
        return len(self.length) - 1

    def _set(self, state: int, token: int, target: int) -> None:
        several = self._several.get(state)
        if several is not None:
            several[token] = target
        elif (only := self._token[state]) in (token, _NONE):
            self._token[state], self._target[state] = token, target
        else:
            self._several[state] = {only: self._target[state], token: target}
            self._token[state] = _NONE

    def _count(self, token: int) -> None:
        """Count the last `depth` tokens and every suffix of them."""
        link, length, count, recent = self.link, self.length, self.count, self.recent
        # Appending may have split the state of the tail; the tail is then among the shorter ones.
        tail = self._of_length(self._tail, self._tail_length)
        self._tail_length = min(self._tail_length + 1, self.depth)
        self._tail = state = self._of_length(self.step(tail, token), self._tail_length)
        assert length[state] >= self._tail_length
        self.clock += 1
        while state:
            count[state] += 1
            recent[state] = self.clock
            state = link[state]

    def _of_length(self, state: int, length: int) -> int:
        """The state of the suffix of this length."""
        while state and self.length[self.link[state]] >= length:
            state = self.link[state]
        return state


def matches(parts: Sequence[SuffixCounts], tokens: Sequence[int]) -> list[tuple[int, Node]]:
    """The suffixes of `tokens` that occur in any of the `parts`, the longest first.

    Returns:
        (length, node); all lengths from there down to the next one have the same occurrences.
    """
    chains = [part.suffixes(tokens) for part in parts]
    if len(chains) == 1:
        return [(length, (state,)) for length, state in chains[0]]
    lengths = {length for chain in chains for length, _ in chain}
    # From the shortest on: a state represents its own length and those below, down to the next.
    found = []
    for length in sorted(lengths):
        for chain in chains:
            if chain and chain[-1][0] < length:
                chain.pop()
        found.append((length, tuple([chain[-1][1] if chain else 0 for chain in chains])))
    return found[::-1]


def occurrences(parts: Sequence[SuffixCounts], node: Node) -> int:
    """How often the sequence occurs, including at the end of a text."""
    return sum([part.count[state] for part, state in zip(parts, node, strict=True) if state])


def followers(parts: Sequence[SuffixCounts], node: Node, share: float) -> list[Follower]:
    """The tokens that follow at least this share of the occurrences, the most frequent first.

    Of equally frequent ones, the most recent comes first.
    """
    if len(parts) == 1:  # the same, shorter
        part, state = parts[0], node[0]
        count, recent = part.count, part.recent
        only: list[_Ranked] = [
            (-count[after], -recent[after], token, (after,))
            for token, after in part.frequent(state, share * count[state])
        ]
        return _in_order(only)
    total = 0
    tokens: set[int] = set()
    for part, state in zip(parts, node, strict=True):
        if state:
            # A share of the whole is reached in at least one part.
            total += part.count[state]
            tokens.update([token for token, _ in part.frequent(state, share * part.count[state])])
    found: list[_Ranked] = []
    for token in tokens:
        times = latest = 0
        after = []
        for part, state in zip(parts, node, strict=True):
            next_state = part.step(state, token) if state else 0
            after.append(next_state)
            if next_state:
                times += part.count[next_state]
                latest = max(latest, part.recent[next_state])
        if times >= share * total:
            found.append((-times, -latest, token, tuple(after)))
    return _in_order(found)


def _in_order(found: list[_Ranked]) -> list[Follower]:
    return [Follower(token, -times, after) for times, _, token, after in sorted(found)]
