"""What is drafted, how far a drafter may go, and what became of a draft: frozen values.

Notation: V is the vocabulary size, n the number of drafted nodes. `q` is the distribution that a
draft token was actually drawn from. Throughout the code, a probability distribution over the
vocabulary is called a *law* for short.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from torch import Tensor

from paceline.errors import InvalidInput

ROOT = -1
"""The parent of the draft tokens on the first level: the last committed token."""


class Scheme(StrEnum):
    """How the children of a node were drawn. A verifier refuses a scheme that it does not know."""

    SINGLE = "single"
    """At most one child per node, drawn from `probs` (chosen deterministically if None)."""
    IID = "iid"
    """Siblings drawn independently from one distribution, with replacement."""
    WITHOUT_REPLACEMENT = "without-replacement"
    """Siblings drawn in order from one distribution, without replacement."""
    CHOSEN = "chosen"
    """Siblings chosen deterministically (for example, the most probable ones): point masses."""
    MIXED = "mixed"
    """Each sibling drawn from its own distribution or chosen deterministically, either of which may
    depend on the siblings before it. A verifier tests them in order."""


@dataclass(frozen=True, slots=True, eq=False)
class Auxiliary:
    """Rows that the target scores with a draft and that can never be accepted.

    They only take part in the pass, for example as a window of guesses that is refined from round
    to round (lookahead decoding). Every row sees the whole committed prefix.

    Args:
        tokens: m tokens.
        positions: the position of each, counted from the root, which is 0.
        visible: `[m, 1 + n + m]` bool: which of the root, the n draft nodes and these m rows each
            row sees. A row sees itself. No draft node sees these rows.

    Raises:
        InvalidInput: the lengths differ, or a row does not see itself.

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
                f"auxiliary rows need one position and one mask row per token; there are {m} "
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
    """What a drafter proposes: a tree of tokens. A chain is a tree, and so is an empty draft.

    Args:
        tokens: the n draft tokens, parents before children.
        parents: the index of each token's parent; `ROOT` is the last committed token. None means a
            chain.
        probs: the distribution q that each token was *actually* drawn from, one `[V]` tensor per
            node that sums to 1. None, for one node or for all, means that the token was chosen
            deterministically (a point mass). Siblings drawn without replacement all carry the
            distribution that the first was drawn from: the verifier strikes out the earlier
            siblings itself.
        scheme: how siblings were drawn.
        aux: extra rows to score, for the drafter's own use; None for none.
        confidence: the drafter's own estimate of the probability that each token is accepted, given
            that its parent is; None if it has none. Used by controllers; verifiers ignore it.
        is_foreseen: whether each confidence was known before its token was drawn, from the tokens
            before it alone, so that a token may be left out because of it (rule 2 of `protocols`).
        drafter: the name of the drafter that made it, if one drafter combines several.

    Raises:
        InvalidInput: the lengths differ, or a parent does not come before its child.

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
    is_foreseen: bool = False

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if self.parents is None:
            object.__setattr__(self, "parents", tuple(range(ROOT, n - 1)))
        assert self.parents is not None
        if len(self.parents) != n or (self.probs is not None and len(self.probs) != n):
            raise InvalidInput(
                f"a draft needs one parent and one law per token; it has {n} tokens, "
                f"{len(self.parents)} parents and "
                f"{'no' if self.probs is None else len(self.probs)} laws"
            )
        if self.confidence is not None and len(self.confidence) != n:
            raise InvalidInput(
                f"a draft needs one confidence per token, or none at all; it has {n} tokens and "
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
                f"the mask of {len(self.aux)} auxiliary rows after a root and {n} draft tokens "
                f"needs {1 + n + len(self.aux)} columns; it has {self.aux.visible.shape[1]}"
            )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def num_rows(self) -> int:
        """The number of rows in a pass over it: the root, the nodes and the auxiliary rows.

        >>> Draft(tokens=(5, 7)).num_rows
        3
        """
        return 1 + len(self.tokens) + (0 if self.aux is None else len(self.aux))

    @property
    def is_chain(self) -> bool:
        """Whether each token is the only child of the token before it."""
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

    def first(self, count: int) -> Draft:
        """The first `count` nodes, without auxiliary rows.

        >>> Draft(tokens=(5, 7, 9)).first(2).tokens
        (5, 7)
        """
        assert self.parents is not None
        return replace(
            self,
            tokens=self.tokens[:count],
            parents=self.parents[:count],
            probs=None if self.probs is None else self.probs[:count],
            confidence=None if self.confidence is None else self.confidence[:count],
            aux=None,
        )

    def law(self, node: int) -> Tensor | None:
        """The distribution q of `node`; None for a point mass."""
        return None if self.probs is None else self.probs[node]

    def path(self, node: int) -> tuple[int, ...]:
        """The nodes from the first level down to and including `node`; empty for the root.

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
        """Whether `nodes` is a path down from the first level, each node the parent of the next.

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
    """What a verifier decides: the accepted path and one more token.

    `path` holds node indices from the first level down; `token` is the correction, or the bonus
    after full acceptance. A verifier always emits it, so a round yields `len(path) + 1` tokens.
    """

    path: tuple[int, ...]
    token: int


class Budget(NamedTuple):
    """How far a drafter may go this round.

    Args:
        num_draft_tokens: the maximum number of tokens on a path.
        max_nodes: the maximum number of tokens in total, for tree drafters; None leaves it to the
            drafter.
        min_confidence: a drafter that has confidences stops *after* a token whose confidence is
            below this. The token itself is kept (rule 2 of `protocols`). One that foresees them
            (`Draft.is_foreseen`) stops before it.
        entropy_bound: a drafter that has distributions stops *before* it draws where
            `1 - sqrt(.2 * entropy) < entropy_bound` (AdaEDL, arXiv 2410.18351).
        drafter: the name of the drafter to use, for a drafter that combines several; None leaves
            the choice to it.
        min_path_confidence: like `min_confidence`, for the product of the confidences on the path.
        min_first_confidence: a drafter that chooses tokens deterministically (n-grams, for example)
            proposes nothing if the confidence of its first token is below this.
        fallback: the budget of the drafter to try next if the chosen one proposes nothing; None
            means that the round is then plain decoding.
        max_catch_up: the maximum number of tokens that a draft model reads before it drafts. If
            more are missing (the prompt, for example), it restarts from the last ones and drafts
            from a shorter context, which it keeps until it is asked without a limit. None reads the
            whole text.
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
        """The same budget with at most `most` tokens on a path, fallbacks included.

        >>> Budget(5, fallback=Budget(8)).within(6).fallback.num_draft_tokens
        6
        """
        fallback = None if self.fallback is None else self.fallback.within(most)
        return self._replace(num_draft_tokens=min(self.num_draft_tokens, most), fallback=fallback)

    @property
    def longest(self) -> int:
        """The maximum number of tokens on a path, fallbacks included."""
        others = 0 if self.fallback is None else self.fallback.longest
        return max(self.num_draft_tokens, others)


class Outcome(NamedTuple):
    """The outcome of a round, for the controller.

    Args:
        budget: what the controller allowed, capped to the room that was left.
        draft: what was scored.
        num_accepted_tokens: how many of its tokens became final.
        num_tested_tokens: how many tokens the verifier decided on along the accepted path: the
            accepted ones and, unless the draft or the answer ended there, the rejected one.
        draft_seconds, target_seconds, verify_seconds: host time. The target's time is that of the
            whole pass.
        num_sequences: how many sequences had a draft, or nothing drafted, scored in the pass.
        pass_rows: the rows of the whole pass, of all sequences.
        prefill_rows: how many of these were prompts of other sequences: where there are any, the
            pass says nothing of what drafts cost.
        context: the length of the sequence before the round.
        num_set, set_rows: how many of the sequences draft what does not follow the load, by a fixed
            length or none at all, and their rows: a controller that follows it has these neighbours
            whatever it chooses.
    """

    budget: Budget
    draft: Draft
    num_accepted_tokens: int
    num_tested_tokens: int
    draft_seconds: float
    target_seconds: float
    verify_seconds: float
    num_sequences: int
    pass_rows: int
    context: int
    prefill_rows: int = 0
    num_set: int = 0
    set_rows: int = 0
