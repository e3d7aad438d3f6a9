"""Lookahead decoding: the target refines a window of guesses; drafts are n-grams from it.

Source: Fu et al. 2402.02057, sections 3 and 4. Each pass does three things at once: it decodes one
token, takes one Jacobi step on a window of guesses ahead, and verifies n-grams collected from
earlier windows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from paceline.checks import require_int
from paceline.core.drafts import ROOT, Auxiliary, Budget, Draft, Scheme
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_TREE
from paceline.sampling.candidates import largest_of_rows

_GOLDEN = 0.6180339887498949
"""Its multiples modulo 1 spread evenly (Weyl), which replaces a random choice."""


@dataclass(frozen=True, slots=True)
class LookaheadDrafter:
    """Draft the n-grams that the target's own parallel guesses have formed after this token.

    The window has `window` columns of `ngram - 1` levels. Level 0 of column 0 is the last token;
    level 0 of column i is i positions further on. Above it are the column's Jacobi iterates, each
    one position further. A pass extends every column by the target's argmax. The column, now
    `ngram` tokens long, goes into a pool under its first token; then its lowest level drops out. A
    draft is the tree of the n-grams in the pool under the last token.

    A pass scores up to `(window + guesses) * (ngram - 1)` rows. The defaults are small (12 rows),
    for processors on which each row slows the pass. Where rows are nearly free, as on a GPU with
    one sequence, use the 7, 5 and 7 of the authors' README (56 rows) or more.

    Args:
        window: the columns (W).
        ngram: the length of an n-gram including its key (N); drafts are one token shorter.
        guesses: the number of n-grams kept under each token, the newest ones (G).
        pool_from_text: also put the n-grams of prompt and answer into the pool.

    Raises:
        InvalidInput: a setting is outside its range.
    """

    name: ClassVar[str] = "lookahead"
    needs: ClassVar[frozenset[Need]] = frozenset({Need.LOGITS, Need.TREE, Need.AUXILIARY})
    needs_draft_model: ClassVar[bool] = False
    default_verifier: ClassVar[str] = "tree"
    drafts: ClassVar[DraftKinds] = CHOSEN_TREE

    window: int = 3
    ngram: int = 3
    guesses: int = 3
    pool_from_text: bool = True

    def __post_init__(self) -> None:
        require_int("window", self.window, low=1)
        require_int("ngram", self.ngram, low=2)
        require_int("guesses", self.guesses, low=1)

    def open(self, target: TargetView, capacity: int) -> LookaheadSession:
        """See `protocols.Drafter.open`."""
        return LookaheadSession(self, capacity)


class LookaheadSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: LookaheadDrafter, capacity: int) -> None:
        self._drafter, self._capacity = drafter, capacity
        self._length = 0
        self._tail: tuple[int, ...] = ()
        self._pool = NgramPool(drafter.guesses)
        self._window = Window((), 0, drafter.ngram)
        self._proposed: Draft | None = None

    def observe(self, committed: Committed) -> None:
        """Step the window if it was in the pass, and move its root to the last token."""
        new, size = committed.tokens, self._drafter.ngram
        if not self._length:
            self._window = Window(new, self._drafter.window, size)
        elif committed.draft is self._proposed is not None and committed.logits is not None:
            self._pool.extend(self._window.step(committed.logits))
        self._proposed = None
        self._window.stand_on(new[-1])
        if self._drafter.pool_from_text:
            text = self._tail + new
            self._pool.extend(text[i : i + size] for i in range(len(text) - size + 1))
            self._tail = text[len(text) - size + 1 :] if len(text) >= size else text
        self._length += len(new)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        self._window.fit(self._capacity - self._length)
        tokens, parents = merge(
            self._pool.after(self._window.root), budget.num_draft_tokens, budget.max_nodes
        )
        self._proposed = Draft(
            tokens, parents, scheme=Scheme.CHOSEN, aux=self._window.rows(len(tokens))
        )
        return self._proposed

    def close(self) -> None:
        """Nothing to free."""


class NgramPool:
    """The newest n-grams under each first token, most recently seen last.

    Args:
        size: how many are kept under one token; the least recently seen one is dropped.

    Example:
        >>> pool = NgramPool(2)
        >>> pool.extend([(1, 2, 3), (1, 4, 5), (1, 2, 3), (1, 6, 7)])
        >>> pool.after(1)
        [(6, 7), (2, 3)]
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._grams: dict[int, dict[tuple[int, ...], None]] = {}

    def extend(self, grams: Iterable[Sequence[int]]) -> None:
        """Add n-grams, key first."""
        for key, *rest in grams:
            known = self._grams.setdefault(key, {})
            known.pop(tuple(rest), None)
            known[tuple(rest)] = None
            if len(known) > self._size:
                del known[next(iter(known))]

    def after(self, token: int) -> list[tuple[int, ...]]:
        """The known continuations of `token`, the newest first."""
        return list(reversed(self._grams.get(token, {})))


class Window:
    """The columns of guesses, each from its level 0 up; column 0 starts at the last token.

    Until the levels are full, a step drops the first column: the last token advances by one
    position, and the added level reaches one position further. So there are `ngram - 2` extra
    columns at the start.

    Args:
        prompt: the source of level 0: tokens spread over the whole prompt by a fixed rule.
        width: the number of columns of the full window; 0 means an empty window.
        ngram: a full column has one token less.
    """

    def __init__(self, prompt: Sequence[int], width: int, ngram: int) -> None:
        self._full = ngram - 1
        count = width + ngram - 2 if width else 0
        places = [int(len(prompt) * (i * _GOLDEN % 1)) for i in range(count)]
        self.columns = [[prompt[place]] for place in places]
        self.root = 0

    def stand_on(self, token: int) -> None:
        """Make `token`, the last committed one, level 0 of the first column."""
        self.root = token
        if self.columns:
            self.columns[0][0] = token

    def fit(self, room: int) -> None:
        """Drop the columns whose top would be more than `room` positions after the root."""
        if self.columns:
            top = len(self.columns[0]) - 1
            del self.columns[max(0, room - top + 1) :]

    def rows(self, num_nodes: int) -> Auxiliary | None:
        """The window as rows of a pass after the root and `num_nodes` draft tokens."""
        if not self.columns or len(self.columns) == len(self.columns[0]) == 1:
            return None  # only the root
        levels = len(self.columns[0])
        positions, seen = _layout(len(self.columns), levels)
        visible = torch.zeros(len(positions), 1 + num_nodes + len(positions), dtype=torch.bool)
        visible[:, 0] = True
        visible[:, 1 + num_nodes :] = seen
        # Level by level, so that the tops are the last rows; the root has a row of its own.
        tokens = [column[level] for level in range(levels) for column in self.columns]
        return Auxiliary(tuple(tokens[1:]), positions, visible)

    def step(self, logits: Tensor) -> list[list[int]]:
        """Extend every column by the target's argmax after its top; returns the resulting n-grams.

        Args:
            logits: the logits of the pass that held `rows`; those of the window come last.
        """
        if not self.columns:
            return []
        count, levels = len(self.columns), len(self.columns[0])
        tops = logits[len(logits) - count :]
        if levels == 1:  # the first column's top is the root, whose row comes first
            tops = torch.cat([logits[:1], logits[len(logits) - count + 1 :]])
        new = largest_of_rows(tops, 1).flatten().tolist()
        longer = [[*column, token] for column, token in zip(self.columns, new, strict=True)]
        if levels < self._full:
            self.columns = longer[1:]
            return []
        self.columns = [column[1:] for column in longer]
        return longer


@lru_cache(maxsize=64)
def _layout(columns: int, levels: int) -> tuple[tuple[int, ...], Tensor]:
    """The positions of the window's rows, and which rows each of them sees.

    A row sees level 0 up to its own column, and its own column up to itself.
    """
    places = [(level, column) for level in range(levels) for column in range(columns)][1:]
    seen = [
        [(low == 0 and c <= column) or (c == column and low <= level) for low, c in places]
        for level, column in places
    ]
    return tuple(level + column for level, column in places), torch.tensor(seen)


def merge(
    sequences: Iterable[Sequence[int]], max_depth: int, max_nodes: int | None
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens and parents of a tree of some sequences, with common prefixes merged.

    >>> merge([(5, 7, 8), (5, 9)], max_depth=2, max_nodes=None)
    ((5, 7, 9), (-1, 0, 0))
    """
    nodes: dict[tuple[int, int], int] = {}
    for sequence in sequences:
        parent = ROOT
        for token in sequence[:max_depth]:
            if (parent, token) not in nodes and len(nodes) == max_nodes:
                break
            parent = nodes.setdefault((parent, token), len(nodes))
    return tuple(token for _, token in nodes), tuple(parent for parent, _ in nodes)
