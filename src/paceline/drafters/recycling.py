"""Token recycling: the target's top candidates at every scored row become later drafts.

Source: Luo et al. 2408.08696, sections 3.2 to 3.4, and its tree template "2.2.2".
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from threading import Lock
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from paceline.checks import require_int
from paceline.core.drafts import ROOT, Budget, Draft, Scheme
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed, Need
from paceline.core.traits import DraftKinds
from paceline.core.view import TargetView
from paceline.drafting.kinds import CHOSEN_CHAIN, CHOSEN_TREE
from paceline.errors import InvalidInput
from paceline.sampling.candidates import largest_of_rows

TEMPLATE: dict[str, int] = {
    "": 8,
    "0": 8,
    "1": 4,
    "2": 3,
    "3": 2,
    "4": 1,
    "5": 1,
    "6": 1,
    "7": 1,
    "00": 8,
    "01": 3,
    "02": 2,
    "03": 1,
    "04": 1,
    "05": 1,
    "06": 1,
    "07": 1,
    "10": 2,
    "11": 1,
    "20": 1,
    "30": 1,
    "40": 1,
    "50": 1,
    "000": 5,
    "001": 2,
    "002": 1,
    "003": 1,
    "004": 1,
    "010": 1,
    "020": 1,
    "100": 1,
    "200": 1,
    "300": 1,
    "0000": 3,
    "0001": 1,
    "0002": 1,
    "0010": 1,
    "0100": 1,
    "1000": 1,
    "00000": 2,
    "00010": 1,
}
"""The paper's static tree of 80 nodes: the number of successors below each node, which is named by
the ranks on its path. 8, 21, 25, 15, 8 and 3 nodes on its levels."""

RANK_ACCEPTANCE = (0.5, 0.15, 0.08, 0.05, 0.035, 0.025, 0.02, 0.015)
"""Weights that only decide which nodes of the template come first if the budget is smaller. They
fall with the rank much as acceptance does: SmolLM2-135M, greedy, 768 tokens, gave .43, .11, .06,
.04, .02, .02, .01 and .02 where successors were known. Either way the first seven nodes are the
same."""


@dataclass(frozen=True)  # without slots, so that the class itself says what it needs by default
class RecyclingDrafter:
    """Draft a tree of the tokens that the target last considered probable after each token.

    Every scored row, including rejected ones, leaves its `candidates` most probable tokens in a
    table under its own token. A draft is a static tree over that table, from the last token down;
    unknown nodes are left out. Until a token has been scored, what followed it in the prompt is
    used instead. The draft consists of point masses, so it is exact under every rule that takes
    them.

    Args:
        candidates: the number of successors kept per token (k).
        max_nodes: the maximum size of the tree. The default makes a pass of 8 rows, for processors
            on which each row slows the pass; 80 is the paper's tree, for a GPU.
        chain: draft only the most probable successors, one after another: for targets and rules
            that take no trees.
        store: a table shared between sequences, so that it is warm from the start; None uses one
            per sequence.

    Raises:
        InvalidInput: a setting is outside its range.
    """

    name: ClassVar[str] = "recycling"
    needs_draft_model: ClassVar[bool] = False
    default_verifier: ClassVar[str] = "tree"
    needs: frozenset[Need] = field(
        default=frozenset({Need.LOGITS, Need.TREE}), init=False, repr=False
    )

    candidates: int = 8
    max_nodes: int = 7
    chain: bool = False
    store: SuccessorStore | None = None

    def __post_init__(self) -> None:
        require_int("candidates", self.candidates, low=1)
        require_int("max_nodes", self.max_nodes, low=1)
        if not isinstance(self.chain, bool):
            raise InvalidInput(f"chain must be true or false; it is {self.chain!r}")
        if self.store is not None and not isinstance(self.store, SuccessorStore):
            raise InvalidInput(
                f"store must be a SuccessorStore of paceline.drafters.recycling; it is "
                f"{self.store!r:.80}"
            )
        if self.chain:
            object.__setattr__(self, "needs", frozenset({Need.LOGITS}))

    @property
    def drafts(self) -> DraftKinds:
        """The kinds of drafts that it makes; see `core.traits`."""
        return CHOSEN_CHAIN if self.chain else CHOSEN_TREE

    def open(self, target: TargetView, capacity: int) -> RecyclingSession:
        """See `protocols.Drafter.open`."""
        store = SuccessorStore() if self.store is None else self.store
        store.fit(target.info.vocab_size, self.candidates)
        return RecyclingSession(self, store)


class SuccessorStore:
    """The successors of each token, most probable first: int32 `[V, k]`, 4.9 MB for 151,936 by 8.

    Safe to share between threads. Pages that are never written take no memory.

    Example:
        >>> store = SuccessorStore()
        >>> store.fit(vocab_size=10, candidates=3)
        >>> store.learn([4], [[7, 1, -1]])
        >>> store.after(4), store.after(7)
        ([7, 1], [])
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # Ids plus one: zeros, which mean "unknown", come from the system without being written.
        self._ids: npt.NDArray[np.int32] | None = None

    def fit(self, vocab_size: int, candidates: int) -> None:
        """Create the table, or check that it matches the request.

        Raises:
            InvalidInput: it already has another shape.
        """
        shape = vocab_size, candidates
        with self._lock:
            if self._ids is None:
                self._ids = np.zeros(shape, dtype=np.int32)
            elif self._ids.shape != shape:
                raise InvalidInput(
                    f"the store of drafter 'recycling' holds {self._ids.shape[1]} successors of "
                    f"{self._ids.shape[0]} tokens, but {candidates} of {vocab_size} are needed; "
                    "use one store for each tokenizer and number of candidates"
                )

    def learn(self, tokens: Any, successors: Any) -> None:
        """Replace the successors of `tokens` `[n]` with `successors` `[n, <= k]` (-1: none).

        If a token occurs twice, the last one counts.
        """
        ids = np.asarray(successors, dtype=np.int32) + 1
        with self._lock:
            assert self._ids is not None
            self._ids[tokens, : ids.shape[1]] = ids

    def after(self, token: int) -> list[int]:
        """The known successors of a token."""
        with self._lock:
            assert self._ids is not None
            return [number - 1 for number in self._ids[token].tolist() if number]


class RecyclingSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: RecyclingDrafter, store: SuccessorStore) -> None:
        self._drafter, self._store = drafter, store
        self._last: int | None = None

    def observe(self, committed: Committed) -> None:
        """Recycle the candidates of every row that was scored."""
        if self._last is None:
            self._learn_from_prompt(committed.tokens)
        elif committed.draft is not None and committed.logits is not None:
            draft = committed.draft
            aux = () if draft.aux is None else draft.aux.tokens
            tokens = np.array([self._last, *draft.tokens, *aux])
            # The accepted rows come last, so that they replace others of the same token.
            final = [0, *(node + 1 for node in committed.path)]
            order = [row for row in range(len(tokens)) if row not in set(final)] + final
            found = largest_of_rows(committed.logits, self._drafter.candidates).numpy()
            self._store.learn(tokens[order], found[order])
        self._last = operator.index(committed.tokens[-1])

    def _learn_from_prompt(self, prompt: Sequence[int]) -> None:
        """What followed each token in the prompt, the newest first; nothing better is known yet."""
        followers: dict[int, dict[int, None]] = {}
        for token, follower in zip(reversed(prompt[:-1]), reversed(prompt[1:]), strict=True):
            followers.setdefault(token, {})[follower] = None
        k = self._drafter.candidates
        unknown = [token for token in followers if not self._store.after(token)]
        rows = [[*followers[token], *[-1] * k][:k] for token in unknown]
        if unknown:
            self._store.learn(unknown, rows)

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        most = self._drafter.max_nodes
        if budget.max_nodes is not None:
            most = min(most, budget.max_nodes)
        if self._drafter.chain:
            return self._chain(min(most, budget.num_draft_tokens))
        assert self._last is not None
        tokens: list[int] = []
        parents: list[int] = []
        known: dict[int, list[int]] = {}
        nodes: dict[tuple[int, ...], int] = {(): ROOT}
        for path in template_paths(budget.num_draft_tokens):
            if len(tokens) == most:
                break
            if (parent := nodes.get(path[:-1])) is None:
                continue
            token = self._last if parent == ROOT else tokens[parent]
            if token not in known:
                known[token] = self._store.after(token)
            if path[-1] < len(known[token]):
                nodes[path] = len(tokens)
                parents.append(parent)
                tokens.append(known[token][path[-1]])
        return Draft(tuple(tokens), tuple(parents), scheme=Scheme.CHOSEN)

    def _chain(self, length: int) -> Draft:
        """The first successor, its first successor, and so on."""
        assert self._last is not None
        tokens = [self._last]
        while len(tokens) <= length and (known := self._store.after(tokens[-1])):
            tokens.append(known[0])
        return Draft(tuple(tokens[1:]))

    def close(self) -> None:
        """Nothing to free; a shared store stays."""


@lru_cache(maxsize=32)
def template_paths(max_depth: int) -> tuple[tuple[int, ...], ...]:
    """The template's nodes within a depth, the most promising first, parents before children.

    Each node is the path of ranks that leads to it.

    >>> template_paths(2)[:3]
    ((0,), (0, 0), (1,))
    """
    paths = [
        (*map(int, parent), rank) for parent, count in TEMPLATE.items() for rank in range(count)
    ]

    def chance(path: tuple[int, ...]) -> float:
        product = 1.0
        for rank in path:
            product *= RANK_ACCEPTANCE[rank]
        return product

    within = [path for path in paths if len(path) <= max_depth]
    return tuple(sorted(within, key=lambda path: (-chance(path), len(path), path)))
