"""What is drafted, how far a drafter may go, and what became of a draft: frozen values.

Notation: V is the size of the vocabulary, n the number of drafted nodes. `q` is the distribution,
or law, that a draft token was really drawn from.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from torch import Tensor

from paceline.errors import InvalidInput

ROOT = -1
"""The parent of a first draft token: the last committed token."""


class Scheme(StrEnum):
    """How the children of one node were drawn. A rule refuses a scheme that it does not know."""

    SINGLE = "single"
    """At most one child a node, drawn from `probs` (or chosen, where `probs` is None)."""
    IID = "iid"
    """Siblings drawn independently from one law, with replacement."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Siblings drawn in order from one law, each without the ones before."""
    CHOSEN = "chosen"
    """Siblings chosen without chance (the most probable ones, say): point masses."""


@dataclass(frozen=True, slots=True, eq=False)
class Auxiliary:
    """Rows that the target scores with a draft and that can never be accepted.

    They take part in the pass alone: a window of guesses that is refined from round to round
    (lookahead decoding), say. Every row sees the whole committed prefix.

    Args:
        tokens: m tokens.
        positions: of each, counted from the root, which is 0.
        visible: `[m, 1 + n + m]` bool, which of the root, the n draft nodes and the m rows here
            each row sees; a row sees itself. Nothing of the draft sees them.

    Raises:
        InvalidInput: lengths differ, or a row that does not see itself.

    Example:
        >>> import torch
        >>> len(Auxiliary((5,), (1,), torch.tensor([[True, True]])))
        1
    """

    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    visible: Tensor

    def __post_init__(self) -> None:
        m = len(self.tokens)
        if len(self.positions) != m or self.visible.dim() != 2 or len(self.visible) != m:
            raise InvalidInput(
                f"auxiliary rows need one position and one row of the mask a token; there are {m} "
                f"tokens, {len(self.positions)} positions and a mask of shape "
                f"{tuple(self.visible.shape)}"
            )
        if m and not bool(self.visible[:, self.visible.shape[1] - m :].diagonal().all()):
            raise InvalidInput("every auxiliary row must see itself")
        if any(position < 0 for position in self.positions):
            raise InvalidInput(
                f"positions of auxiliary rows count from the root, which is 0; they are "
                f"{self.positions}"
            )

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class Draft:
    """What a drafter proposes: a tree of tokens. A chain is a tree, and so is nothing at all.

    Args:
        tokens: the n draft tokens, parents before children.
        parents: the index of each token's parent; `ROOT` is the last committed token. None
            stands for a chain.
        probs: the law q that each token was *really* drawn from, a `[V]` tensor a node that sums
            to 1; None at a node, or altogether, says that the token was chosen without chance
            (a point mass). Siblings without replacement all name the one law that the first was
            drawn from: the rule strikes out the siblings before.
        scheme: how siblings were drawn.
        aux: rows to score besides, for the drafter's own use; None for none.
        confidence: how probable the drafter itself holds each token to be accepted, once its
            parent is; None where it does not say. For controllers: no rule looks at it.
        drafter: the name of the drafter that made it, where one drafter has several at hand.

    Raises:
        InvalidInput: lengths differ, or a parent does not come before its child.

    Example:
        >>> Draft(tokens=(5, 7)).parents
        (-1, 0)
    """

    tokens: tuple[int, ...] = ()
    parents: tuple[int, ...] | None = None
    probs: tuple[Tensor | None, ...] | None = None
    scheme: Scheme = Scheme.SINGLE
    aux: Auxiliary | None = None
    confidence: tuple[float, ...] | None = None
    drafter: str | None = None

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if self.parents is None:
            object.__setattr__(self, "parents", tuple(range(ROOT, n - 1)))
        assert self.parents is not None
        if len(self.parents) != n or (self.probs is not None and len(self.probs) != n):
            raise InvalidInput(
                f"a draft needs one parent and one law a token; it has {n} tokens, "
                f"{len(self.parents)} parents and "
                f"{'no' if self.probs is None else len(self.probs)} laws"
            )
        if self.confidence is not None and len(self.confidence) != n:
            raise InvalidInput(
                f"a draft needs one confidence a token, or none at all; it has {n} tokens and "
                f"{len(self.confidence)}"
            )
        for node, parent in enumerate(self.parents):
            if not ROOT <= parent < node:
                raise InvalidInput(
                    f"the parent of draft node {node} must come before it ({ROOT} for the last "
                    f"committed token); it is {parent}"
                )
        if self.aux is not None and self.aux.visible.shape[1] != 1 + n + len(self.aux):
            raise InvalidInput(
                f"the mask of {len(self.aux)} auxiliary rows behind a root and {n} draft tokens "
                f"needs {1 + n + len(self.aux)} columns; it has {self.aux.visible.shape[1]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_rows(self) -> int:
        """The rows that a pass over it has: the root, the nodes, and the auxiliary rows.

        >>> Draft(tokens=(5, 7)).num_rows
        3
        """
        return 1 + len(self.tokens) + (0 if self.aux is None else len(self.aux))

    @property
    def is_chain(self) -> bool:
        """Whether each token is the only child of the one before."""
        return self.parents == tuple(range(ROOT, len(self.tokens) - 1))

    @property
    def max_path_length(self) -> int:
        """The number of tokens on the longest path.

        >>> Draft(tokens=(5, 7, 9), parents=(-1, 0, 0)).max_path_length
        2
        """
        assert self.parents is not None
        depths: list[int] = []
        for parent in self.parents:
            depths.append(1 if parent == ROOT else depths[parent] + 1)
        return max(depths, default=0)

    def law(self, node: int) -> Tensor | None:
        """The law q of `node`, None for a point mass."""
        return None if self.probs is None else self.probs[node]

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first level to `node`, itself included; empty for the root.

        >>> Draft(tokens=(5, 7, 9), parents=(-1, 0, 0)).path(2)
        (0, 2)
        """
        assert self.parents is not None
        path: list[int] = []
        while node != ROOT:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))

    def is_path(self, nodes: Sequence[int]) -> bool:
        """Whether `nodes` go down from the first level, each the parent of the next.

        >>> Draft(tokens=(5, 7, 9), parents=(-1, 0, 0)).is_path((0, 2))
        True
        """
        inside = all(0 <= node < len(self) for node in nodes)
        return inside and tuple(nodes) == (self.path(nodes[-1]) if nodes else ())

    def children(self, node: int) -> tuple[int, ...]:
        """The children of `node` in draw order."""
        assert self.parents is not None
        return tuple(child for child, parent in enumerate(self.parents) if parent == node)


class Verdict(NamedTuple):
    """What a rule decides: the accepted path, and one token more.

    `path` holds node indices from the first level down; `token` is the correction, or the bonus
    after full acceptance. A rule always emits it, so that a round yields `len(path) + 1` tokens.
    """

    path: tuple[int, ...]
    token: int


class Budget(NamedTuple):
    """How far a drafter may go this round.

    Args:
        num_draft_tokens: the most tokens on a path.
        max_nodes: the most tokens in all, for drafters of trees; None leaves it to the drafter.
        min_confidence: a drafter that has a belief in its tokens stops *after* one that it holds
            to be less probable than this. The token itself is kept (rule 2 of `protocols`).
        entropy_bound: one that has a law stops *before* it draws where
            `1 - sqrt(.2 * entropy) < entropy_bound` (AdaEDL, arXiv 2410.18351).
        drafter: which one is to draft, where a drafter has several at hand; None leaves it to it.
        min_path_confidence: as `min_confidence`, for the product of the confidences on the path.
        min_first_confidence: a drafter whose tokens are chosen without chance, n-grams say,
            proposes nothing where it holds its first token to be less probable than this.
        fallback: the budget of the drafter that is to step in where the one asked for has
            nothing; None leaves the round plain.
        max_catch_up: the most tokens that a draft model reads before it drafts. Where more are
            missing, the prompt say, it starts afresh from the last ones and drafts from a shorter
            context; it keeps that context until it is asked without a limit. None reads all of
            the text.
    """

    num_draft_tokens: int
    max_nodes: int | None = None
    min_confidence: float = 0.0
    entropy_bound: float = 0.0
    drafter: str | None = None
    min_path_confidence: float = 0.0
    min_first_confidence: float = 0.0
    fallback: Budget | None = None
    max_catch_up: int | None = None

    def within(self, most: int) -> Budget:
        """The same with at most `most` tokens on a path, fallbacks included.

        >>> Budget(5, fallback=Budget(8)).within(6).fallback.num_draft_tokens
        6
        """
        fallback = None if self.fallback is None else self.fallback.within(most)
        return self._replace(num_draft_tokens=min(self.num_draft_tokens, most), fallback=fallback)

    @property
    def longest(self) -> int:
        """The most tokens on a path, fallbacks included."""
        others = 0 if self.fallback is None else self.fallback.longest
        return max(self.num_draft_tokens, others)


class Outcome(NamedTuple):
    """What became of a round, for the controller.

    Args:
        budget: what the controller had allowed, as far as there was room for it.
        draft: what was scored.
        num_accepted_tokens: how many of its tokens became final.
        num_tested_tokens: how many of the longest accepted path the rule decided on: the accepted
            ones and, unless the draft or the answer ended there, the rejected one.
        draft_seconds, target_seconds, verify_seconds: host time. The target's is that of the
            whole pass.
        num_sequences: how many sequences shared the pass.
        num_rows: the rows of the whole pass, of all sequences.
        context: the length of the sequence before the round.
    """

    budget: Budget
    draft: Draft
    num_accepted_tokens: int
    num_tested_tokens: int
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    num_sequences: int
    num_rows: int
    context: int
