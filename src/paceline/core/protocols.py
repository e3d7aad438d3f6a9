"""The contracts, on one page.

A chain is a tree, plain decoding is an empty draft, one request is a batch of one: there is one
path through the engine.

Three rules decide whether the output is exact, and every plug-in keeps them:

1. `Draft.probs` is the law that *really* drew each token; None is a point mass.
2. Whether a token is submitted never depends on that token: a drafter may stop after a token that
   it keeps, it may not drop one that it drew.
3. Each test has its own random number, from the `Noise` it is handed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from paceline.core.drafts import Budget, Draft, Outcome, Scheme, Verdict
from paceline.core.hidden import Hidden
from paceline.core.target import Committed, Need, Opening, Scores, TargetInfo
from paceline.core.view import TargetView


class Purpose(IntEnum):
    """What a random number is for. Numbers for different purposes are independent."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2
    RACE = 3


class Noise(Protocol):
    """The source of chance of one sequence. Positions are absolute, from the prompt's start."""

    def accept(self, probability: float, position: int) -> bool:
        """Decide once, with this probability, independently of every other decision."""
        ...

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """Draw a token from `law` (`[V]`, not negative, any positive sum), independently."""
        ...

    def race(self, law: Tensor, position: int) -> int:
        """Draw a token from `law` with noise that is *shared* by every race at the position.

        The token is argmin E_v / law(v) with exponential E_v keyed by (seed, position, v), so two
        models that race at one position tend to agree (coupling, Daliri et al. 2408.07978).
        """
        ...


class Warp(Protocol):
    """From logits to the law of the next token, under the sampling options of one sequence."""

    @property
    def is_greedy(self) -> bool:
        """Whether every law is a point mass on the most probable token."""
        ...

    def law(self, logits: Tensor, path: Sequence[int] = ()) -> Tensor:
        """The law `[V]` behind `logits` `[V]`, `path` being the draft tokens that come before.

        Does not change `logits`. Penalties see the committed tokens and `path`.
        """
        ...


class DraftSession(Protocol):
    """The state of one drafter for one sequence."""

    def observe(self, committed: Committed) -> None:
        """Take in final tokens: the prompt first, then those of each round. Each is told once."""
        ...

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft:
        """Propose a draft that follows the tokens observed so far; an empty one is fine.

        At most `budget.num_draft_tokens` tokens on a path, and within the rest of the `Budget`.
        `warp` holds the sampling options of
        the target, for drafters that draw from a law of their own; what `noise` they use is for
        `Purpose.DRAFT`. The proposal is forgotten: only `observe` says what became final.
        """
        ...

    def close(self) -> None:
        """Free what the session holds. Called once, also after an error."""
        ...


class Drafter(Protocol):
    """A way to draft. Holds settings only: frozen, shareable, the same for every sequence.

    What it may declare beyond these members, such as that it drafts with a model of its own,
    stands in `core.traits`.
    """

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What it needs of the target beyond tokens, all of which `TargetInfo.gives`."""
        ...

    def open(self, target: TargetView, capacity: int) -> DraftSession:
        """Start on a sequence of at most `capacity` tokens, prompt and answer together.

        Raises:
            InvalidInput: it cannot draft for this target (another tokenizer, say).
        """
        ...


class Work(NamedTuple):
    """One sequence's part of a target pass.

    Args:
        slot: its place in the target.
        tokens: the committed tokens that are not cached yet, in order, at least one. The last is
            the root of the draft.
        draft: what follows them.
        logits: whether the rows from the root on are wanted. A chunk of a prompt, which has no
            draft, needs none.
        hidden: the hidden states that are wanted, of all its rows; None for none.
    """

    slot: Any
    tokens: Sequence[int]
    draft: Draft = Draft()
    logits: bool = True
    hidden: Hidden | None = None

    @property
    def num_rows(self) -> int:
        """Its rows in the pass."""
        return len(self.tokens) - 1 + self.draft.num_rows

    @property
    def num_scored(self) -> int:
        """How many of its rows have logits: the root and what follows it, or none."""
        return self.draft.num_rows if self.logits else 0


class Target(Protocol):
    """A model and its cache. A slot is one sequence's place in it; its type is the target's own.

    `score` is handed the committed tokens that are not cached yet, the last of them as the root of
    a draft, and `commit` moves them, with the accepted path, into the cache. Rollback lives here
    alone. One pass serves many slots, of different lengths, with chunks of prompts and with drafts.
    """

    @property
    def info(self) -> TargetInfo:
        """Vocabulary, limits and what the target gives."""
        ...

    def open(self, capacity: int) -> Any:
        """A fresh slot for at most `capacity` tokens.

        Raises:
            ContextOverflow: more than `info.max_length`.
        """
        ...

    def length(self, slot: Any) -> int:
        """The number of cached tokens."""
        ...

    def score(self, work: Sequence[Work]) -> list[Scores]:
        """One pass over all committed tokens, drafts and auxiliary rows.

        The cached lengths do not change. A target may take apart what is too long for one pass.
        """
        ...

    def commit(self, slot: Any, path: Sequence[int]) -> None:
        """Keep the tokens of the slot's last `score` and the nodes of `path`; drop the rest."""
        ...

    def rollback(self, slot: Any, length: int) -> None:
        """Cut the cache to its first `length` tokens."""
        ...

    def view(self, slot: Any) -> TargetView:
        """What a drafter may use of it on the sequence of `slot`."""
        ...

    def close(self, slot: Any) -> None:
        """Free the slot."""
        ...


class Verifier(Protocol):
    """A rule that accepts or rejects a draft: a pure function of p, the draft and the noise.

    Most rules walk: they ask for the law after a node once they are there. One that asks for laws
    after tokens that it may then reject declares the trait `looks_ahead` (`core.traits`).
    """

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the law of the output is p for every draft that it takes."""
        ...

    @property
    def couples(self) -> bool:
        """Whether the tokens follow from p and the noise alone, whatever is drafted.

        The draws of a drafter then share the noise of the target's, position by position, so that
        they agree as often as they can.
        """
        ...

    @property
    def schemes(self) -> frozenset[Scheme]:
        """The ways of drawing siblings that it knows. The engine refuses any other."""
        ...

    @property
    def needs_chain(self) -> bool:
        """Whether it takes chains only."""
        ...

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """Decide.

        Args:
            draft: the proposal.
            p: the target's law `[V]` behind a node, `ROOT` for the last committed token. It is
                computed when first asked for, so a rule that asks only where its walk arrives
                pays only for that, and processors see each committed position once, in order.
                The tensor must not be changed.
            noise: the source of every decision.
            position: the absolute position of the first draft token.
        """
        ...


class ControllerSession(Protocol):
    """The draft lengths of one sequence."""

    def budget(self) -> Budget:
        """How far to draft this round. May depend on the past alone."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Take in what became of the round."""
        ...


class Controller(Protocol):
    """A rule for the draft length. Holds settings only; what it may declare: `core.traits`."""

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    def open(self, opening: Opening = Opening()) -> ControllerSession:
        """Start on a sequence; `opening` says what is known of it beforehand."""
        ...
