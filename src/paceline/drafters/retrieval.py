"""Retrieval: draft what followed the last tokens in a corpus on disk.

Source: REST (He et al. 2311.08252).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from paceline.checks import require_int
from paceline.core.drafts import ROOT, Budget, Draft, Scheme
from paceline.core.protocols import Noise, Warp
from paceline.core.target import Committed
from paceline.core.view import TargetView
from paceline.drafting.kinds import ChosenByMode
from paceline.drafting.stores.copies import believed
from paceline.drafting.stores.corpus import DEPTH, MARK, Corpus
from paceline.drafting.stores.tries import prefix_path, prefix_tree
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class RetrievalDrafter(ChosenByMode):
    """Draft what followed the longest match of the last tokens in a datastore.

    The continuations of all its occurrences are counted, and the most frequent ones are drafted:
    token by token (`path`), or a tree of the most frequent prefixes (`tree`, the method of the
    paper). The draft consists of point masses, so it is exact under every rule for such drafts. The
    datastore stays on disk; `paceline datastore build` creates it.

    Args:
        datastore: a datastore from `paceline datastore build`: its file, or an open one.
        mode: "path" or "tree"; "tree" needs a target and a rule that take trees.
        max_match: the longest match that is searched for.
        min_match: the shortest.
        max_places: if a match has more occurrences, this many evenly spaced ones are used; this
            bounds the time of a round.
        max_continuation: how many tokens are read after each occurrence.
        max_nodes: the maximum number of tokens of a tree, if the controller sets none.
        tokenizer_fingerprint: the fingerprint of the target's tokenizer, see
            `text.tokenizer_fingerprint`; filled in if the drafter is given by name. It must match
            the datastore's.

    Raises:
        InvalidInput: a setting is outside its range, or the datastore cannot be read, is damaged,
            or was built with another tokenizer.
    """

    name: ClassVar[str] = "retrieval"
    needs_draft_model: ClassVar[bool] = False

    datastore: Corpus | str | Path
    mode: Literal["path", "tree"] = "path"
    max_match: int = 16
    min_match: int = 2
    max_places: int = 5000
    max_continuation: int = 10
    max_nodes: int = 64
    tokenizer_fingerprint: str | None = None

    def __post_init__(self) -> None:
        if self.mode not in ("path", "tree"):
            raise InvalidInput(f"mode must be 'path' or 'tree'; it is {self.mode!r}")
        require_int("min_match", self.min_match, low=1)
        require_int("max_match", self.max_match, low=self.min_match, high=DEPTH - 1)
        require_int("max_places", self.max_places, low=1)
        require_int("max_nodes", self.max_nodes, low=1)
        # The suffixes are only sorted by this many tokens.
        require_int("max_continuation", self.max_continuation, low=1, high=DEPTH - self.max_match)
        if isinstance(self.datastore, (str, Path)):
            object.__setattr__(self, "datastore", Corpus.open(self.datastore))
        if not isinstance(self.datastore, Corpus):
            raise InvalidInput(
                f"datastore must be a path or a Corpus; it is {self.datastore!r:.80}"
            )
        theirs = self.datastore.about.get("fingerprint")
        if (
            None not in (theirs, self.tokenizer_fingerprint)
            and theirs != self.tokenizer_fingerprint
        ):
            raise InvalidInput(
                f"the datastore {self.datastore.path} was built with the tokenizer of "
                f"{self.datastore.about.get('tokenizer', 'another model')}, and the target has "
                "another; build it again with `paceline datastore build --tokenizer NAME`"
            )

    @property
    def corpus(self) -> Corpus:
        """The opened datastore."""
        assert isinstance(self.datastore, Corpus)
        return self.datastore

    def open(self, target: TargetView, capacity: int) -> RetrievalSession:
        """See `protocols.Drafter.open`."""
        info = target.info
        if self.corpus.highest >= info.vocab_size:
            raise InvalidInput(
                f"the datastore {self.corpus.path} holds token {self.corpus.highest}; the "
                f"vocabulary of {info.name} is 0 to {info.vocab_size - 1}: was it built with "
                "another tokenizer?"
            )
        return RetrievalSession(self)


class RetrievalSession:
    """See `protocols.DraftSession`."""

    def __init__(self, drafter: RetrievalDrafter) -> None:
        self._drafter = drafter
        self._tail: tuple[int, ...] = ()

    def observe(self, committed: Committed) -> None:
        """See `protocols.DraftSession.observe`."""
        longest = self._drafter.max_match
        self._tail = (*self._tail, *committed.tokens[-longest:])[-longest:]

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """See `protocols.DraftSession.propose`."""
        drafter, corpus = self._drafter, self._drafter.corpus
        length = min(budget.num_draft_tokens, drafter.max_continuation)
        found = corpus.find(self._tail, longest=drafter.max_match, shortest=drafter.min_match)
        if found is None or length < 1:
            return Draft()
        rows = corpus.continuations(found, length, drafter.max_places)
        if drafter.mode == "tree":
            most = drafter.max_nodes if budget.max_nodes is None else budget.max_nodes
            trie = prefix_tree(rows, MARK, most)
        else:
            trie = prefix_path(rows, MARK, length if budget.max_nodes is None else budget.max_nodes)
        confidence = [
            times / (len(rows) if parent == ROOT else trie.times[parent])
            for times, parent in zip(trie.times, trie.parents, strict=True)
        ]
        scheme = Scheme.CHOSEN if drafter.mode == "tree" else Scheme.SINGLE
        return believed(trie.tokens, trie.parents, confidence, budget, scheme)

    def close(self) -> None:
        """Nothing to free."""
