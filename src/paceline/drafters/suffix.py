"""SuffixDecoding: draft what most often followed the last tokens, here and in past outputs.

Source: SuffixDecoding (Oliaro et al. 2411.04975).
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count as counter
from pathlib import Path
from typing import ClassVar, Literal, NamedTuple

from paceline.checks import require_finite, require_int
from paceline.core.drafts import ROOT, Budget, Draft, Scheme
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafting.kinds import ChosenByMode
from paceline.drafting.stores.copies import believed
from paceline.drafting.stores.outputs import PastOutputs
from paceline.drafting.stores.suffixes import (
    Follower,
    Node,
    SuffixCounts,
    followers,
    matches,
    occurrences,
)
from paceline.errors import InvalidInput

MOST_MATCHES = 8
"""Text rarely has more distinct matches; one repeated token has one for every length."""

CIRCLE_MATCHES = 12
"""With more than this, a text is repeating a short cycle, and all matches say the same."""

FEW_MATCHES = 4
"""The number of matches that are evaluated in such a cycle."""

_ROUNDING = 1e-6
"""So that with a factor of 0.1 a match of ten tokens gives one draft token."""


@dataclass(frozen=True, slots=True)
class SuffixDrafter(ChosenByMode):
    """Draft what most often followed the longest matches of the last tokens.

    Every match of the last m tokens, in the request or in past outputs, proposes up to
    `factor * m + offset` tokens: the most frequent one after another (`path`), or the most probable
    continuations (`tree`). The proposal with the largest sum of probabilities is the draft; ties go
    to the longer match, and to the request before past outputs. The draft consists of point masses,
    so it is exact under every rule for such drafts, and no model is needed. At most eight matches
    are evaluated on each side; of more than twelve distinct ones only four: the longest, the
    shortest and two between.

    Args:
        mode: "path" or "tree"; "tree" needs a target and a rule that take trees.
        max_depth: the longest match, and the longest draft.
        factor, offset: how many tokens a match of m tokens proposes.
        min_probability: tokens with a lower estimated probability, given the text, are left out.
        max_nodes: the maximum number of tokens of a tree, if the controller sets none.
        store: past outputs to search as well; a path opens a file of them. Without it, requests are
            independent.
        capacity: the maximum number of tokens in a store that is opened by its path.
        learn: whether the outputs of this drafter are added to the store when they end.

    Raises:
        InvalidInput: a setting is outside its range, or the store cannot be used.
    """

    name: ClassVar[str] = "suffix"
    needs_draft_model: ClassVar[bool] = False

    mode: Literal["path", "tree"] = "path"
    max_depth: int = 64
    factor: float = 1.0
    offset: float = 0.0
    min_probability: float = 0.1
    max_nodes: int = 32
    store: PastOutputs | str | Path | None = None
    capacity: int = 100_000
    learn: bool = True

    def __post_init__(self) -> None:
        if self.mode not in ("path", "tree"):
            raise InvalidInput(f"mode must be 'path' or 'tree'; it is {self.mode!r}")
        require_int("max_depth", self.max_depth, low=1, high=1024)
        require_int("max_nodes", self.max_nodes, low=1)
        require_finite(self, "factor", self.factor, low=0.0)
        require_finite(self, "offset", self.offset)
        require_finite(self, "min_probability", self.min_probability, low=0.0, high=1.0)
        if not isinstance(self.learn, bool):
            raise InvalidInput(f"learn must be true or false; it is {self.learn!r}")
        if isinstance(self.store, (str, Path)):
            opened = PastOutputs(self.store, capacity=self.capacity, max_depth=self.max_depth)
            object.__setattr__(self, "store", opened)
        if self.store is not None and not isinstance(self.store, PastOutputs):
            raise InvalidInput(f"store must be a PastOutputs or a path; it is {self.store!r:.80}")
        if self.store is not None and self.store.max_depth < self.max_depth:
            raise InvalidInput(
                f"max_depth is {self.max_depth}, but that of the store is {self.store.max_depth}; "
                "create the store with the same, or lower max_depth"
            )

    def open(self, target: TargetView, capacity: int) -> SuffixSession:
        """See `protocols.Drafter.open`."""
        if isinstance(self.store, PastOutputs):
            self.store.check(target.info)
        return SuffixSession(self)


class Proposal(NamedTuple):
    """What one match proposes: a tree, and the estimated probability of each of its tokens.

    Args:
        tokens, parents: as in `Draft`.
        shares: the share of the occurrences of a token's parent that the token follows.
        score: the sum of the probabilities, which are the products of the shares along the path.
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] = ()
    shares: tuple[float, ...] = ()
    score: float = 0.0


class Limits(NamedTuple):
    """How far a proposal may go."""

    depth: int
    min_probability: float


def follow_path(parts: Sequence[SuffixCounts], node: Node, count: int, limits: Limits) -> Proposal:
    """The most frequent token, then the most frequent one after it, and so on: at most `count`."""
    tokens: list[int] = []
    shares: list[float] = []
    probability, score, total = 1.0, 0.0, occurrences(parts, node)
    while len(tokens) < min(count, limits.depth):
        found = followers(parts, node, _share(limits, probability))
        if not found:
            break
        share = found[0].times / total
        probability *= share
        if probability < limits.min_probability:
            break
        node, total = found[0].node, found[0].times
        tokens.append(found[0].token)
        shares.append(share)
        score += probability
    return Proposal(tuple(tokens), tuple(range(ROOT, len(tokens) - 1)), tuple(shares), score)


def follow_tree(parts: Sequence[SuffixCounts], node: Node, count: int, limits: Limits) -> Proposal:
    """The `count` most probable continuations."""
    tokens: list[int] = []
    parents: list[int] = []
    shares: list[float] = []
    score, order = 0.0, counter()
    # (-probability, order, share, follower, parent, depth): ties go in order.
    heap: list[tuple[float, int, float, Follower, int, int]] = []

    def push(node: Node, total: int, probability: float, parent: int, depth: int) -> None:
        for follower in followers(parts, node, _share(limits, probability)):
            share = follower.times / total
            path = probability * share
            if path >= limits.min_probability:
                heapq.heappush(heap, (-path, next(order), share, follower, parent, depth))

    push(node, occurrences(parts, node), 1.0, ROOT, 1)
    while heap and len(tokens) < count:
        minus, _, share, (token, times, node), parent, depth = heapq.heappop(heap)
        tokens.append(token)
        parents.append(parent)
        shares.append(share)
        score -= minus
        if depth < limits.depth:
            push(node, times, -minus, len(tokens) - 1, depth + 1)
    return Proposal(tuple(tokens), tuple(parents), tuple(shares), score)


def _share(limits: Limits, probability: float) -> float:
    """The smallest share that keeps a token probable enough; slightly less, for rounding."""
    return limits.min_probability / probability * (1 - 1e-9)


def _some(found: Sequence[tuple[int, Node]]) -> Sequence[tuple[int, Node]]:
    """The matches that are evaluated, evenly spaced from the longest to the shortest.

    >>> [length for length, node in _some([(length, (1,)) for length in range(64, 0, -1)])]
    [64, 43, 22, 1]
    """
    if len(found) <= MOST_MATCHES:
        return found
    last, most = len(found) - 1, MOST_MATCHES if len(found) <= CIRCLE_MATCHES else FEW_MATCHES
    return [found[round(i * last / (most - 1))] for i in range(most)]


Follow = Callable[[Sequence[SuffixCounts], Node, int, Limits], Proposal]


class SuffixSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: SuffixDrafter) -> None:
        self._drafter = drafter
        # A draft of `max_depth` tokens after a match of `max_depth` tokens.
        self._own = SuffixCounts(2 * drafter.max_depth)
        self._store = drafter.store if isinstance(drafter.store, PastOutputs) else None
        self._follow: Follow = follow_tree if drafter.mode == "tree" else follow_path
        self._tail: tuple[int, ...] = ()
        self._output: list[int] | None = None

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        longest = self._drafter.max_depth
        self._own.extend(committed.tokens)
        self._tail = (*self._tail, *committed.tokens[-longest:])[-longest:]
        if self._output is None:  # that was the prompt
            self._output = []
        else:
            self._output += committed.tokens

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        best = self._best([self._own], budget)
        if self._store is not None:
            with self._store.lock:
                past = self._best(self._store.parts, budget)
            best = max(best, past, key=lambda proposal: proposal.score)  # the first where they tie
        scheme = Scheme.CHOSEN if self._drafter.mode == "tree" else Scheme.SINGLE
        return believed(best.tokens, best.parents, best.shares, budget, scheme)

    def _best(self, parts: Sequence[SuffixCounts], budget: Budget) -> Proposal:
        """The best proposal of all matches.

        The score of a proposal is at most its number of tokens.
        """
        drafter = self._drafter
        depth = min(budget.num_draft_tokens, drafter.max_depth)
        most = depth if drafter.mode == "path" else drafter.max_nodes
        if budget.max_nodes is not None:
            most = min(most, budget.max_nodes) if drafter.mode == "path" else budget.max_nodes
        if depth == 0:
            return Proposal()
        limits = Limits(depth, drafter.min_probability)
        best = Proposal()
        for length, node in _some(matches(parts, self._tail)):
            count = min(most, int(drafter.factor * length + drafter.offset + _ROUNDING))
            if count <= best.score:
                break
            proposal = self._follow(parts, node, count, limits)
            best = max(best, proposal, key=lambda one: one.score)
        return best

    def close(self) -> None:
        """Add the output to the store, all of it or nothing."""
        output, self._output = self._output, None
        if self._store is not None and self._drafter.learn and output:
            self._store.add(output)
