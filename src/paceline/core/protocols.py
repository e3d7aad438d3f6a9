"""The contracts, on one page.

A chain is a tree, plain decoding is an empty draft, and one request is a batch of one, so there is
one path through the engine. A *law* is a probability distribution over the vocabulary.

Three rules decide whether the output is exact. Every plug-in must follow them:

1. `Draft.probs` is the distribution that each token was *actually* drawn from; None is a point
   mass.
2. Whether a token is submitted never depends on that token: a drafter may stop after a token that
   it keeps, but must not drop one that it drew.
3. Each test uses its own random number, from the `Noise` that is passed in.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Sequence
from contextlib import AbstractContextManager
from enum import IntEnum
from typing import Any, NamedTuple, Protocol, TypeVar

from torch import Tensor

from paceline.core.drafts import Budget, Draft, Outcome, Scheme, Verdict
from paceline.core.hidden import Hidden
from paceline.core.target import Committed, Need, Opening, Scores, TargetInfo
from paceline.core.view import TargetView

T = TypeVar("T")


class Purpose(IntEnum):
    """The purpose of a random number. Numbers for different purposes are independent."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2
    RACE = 3


class Noise(Protocol):
    """The source of randomness of one sequence.

    Positions are absolute, from the start of the prompt.
    """

    def accept(self, probability: float, position: int) -> bool:
        """Return True with this probability, independently of every other decision."""
        ...

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """Draw a token independently from `law` (`[V]`, non-negative, any positive sum)."""
        ...

    def race(self, law: Tensor, position: int) -> int:
        """Draw a token from `law` with noise that is *shared* by every race at the position.

        The token is argmin E_v / law(v) with exponential E_v keyed by (seed, position, v), so two
        models that race at one position tend to agree (coupling, Daliri et al. 2408.07978).
        """
        ...


class Warp(Protocol):
    """From logits to the distribution of the next token, under one sequence's sampling options."""

    @property
    def is_greedy(self) -> bool:
        """Whether every distribution is a point mass on the most probable token."""
        ...

    def law(self, logits: Tensor, path: Sequence[int] = ()) -> Tensor:
        """The distribution `[V]` for `logits` `[V]`; `path` holds the draft tokens before it.

        Does not change `logits`. Penalties see the committed tokens and `path`.
        """
        ...


class ConstraintSession(Protocol):
    """What one answer may say next, such as by a grammar. It changes by `observe` alone.

    A `path` holds draft tokens that follow the answer so far; each was allowed after those before
    it, and none is an end token.
    """

    def allowed(self, path: Sequence[int]) -> Tensor:
        """Which tokens may follow the path: `[V]` bool. Do not change it."""
        ...

    def allows(self, path: Sequence[int], token: int) -> bool:
        """Whether the token may follow the path; cheaper than all of `allowed`."""
        ...

    def forced(self) -> Sequence[int]:
        """Tokens that must follow the answer so far, each the only one that is allowed."""
        ...

    def observe(self, tokens: Sequence[int]) -> None:
        """Take in tokens of the answer that are final, an end token perhaps as the last."""
        ...


class Constraint(Protocol):
    """A restriction of what answers may say: p, restricted to what is allowed, is the target's law.

    Holds settings only: frozen, shareable, the same for every sequence.
    """

    def open(self) -> ConstraintSession:
        """Start an answer."""
        ...


class DraftSession(Protocol):
    """The state of one drafter for one sequence."""

    def observe(self, committed: Committed) -> None:
        """Take in final tokens: the prompt first, then those of each round.

        Each token is reported once.
        """
        ...

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Draft | Steps[Draft]:
        """Propose a draft that follows the tokens observed so far; an empty one is fine.

        A path has at most `budget.num_draft_tokens` tokens; the rest of the `Budget` applies too.
        `warp` holds the target's sampling options, for drafters that sample from distributions of
        their own; they use `noise` for `Purpose.DRAFT` only. A session must not rely on its
        proposal: only `observe` says what became final.

        A session that runs a model may be a generator here: it yields an `Ask` where it would call
        `model.score`, and is sent the answer, so that one pass serves several sequences.
        `core.passes.drive` runs such a proposal by itself.
        """
        ...

    def close(self) -> None:
        """Free the session's resources. Called once, also after an error."""
        ...


class Drafter(Protocol):
    """A drafting method. Holds settings only: frozen, shareable, the same for every sequence.

    `core.traits` lists what it may declare beyond these members, for example that it drafts with a
    model of its own.
    """

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What it needs from the target beyond tokens; each must be in `TargetInfo.gives`."""
        ...

    def open(self, target: TargetView, capacity: int) -> DraftSession:
        """Start a session for a sequence of at most `capacity` tokens, prompt and answer together.

        Raises:
            InvalidInput: it cannot draft for this target (because of another tokenizer, for
                example).
        """
        ...


class Work(NamedTuple):
    """One sequence's part of a target pass.

    Args:
        slot: its place in the target.
        tokens: the committed tokens that are not cached yet, in order; at least one. The last is
            the root of the draft.
        draft: the draft that follows them.
        logits: whether logits are wanted for the root and the rows after it. A chunk of a prompt
            has no draft and needs none.
        hidden: the hidden states wanted for all its rows; None for none.
    """

    slot: Any
    tokens: Sequence[int]
    draft: Draft = Draft()
    logits: bool = True
    hidden: Hidden | None = None

    @property
    def num_rows(self) -> int:
        """The number of its rows in the pass."""
        return len(self.tokens) - 1 + self.draft.num_rows

    @property
    def num_scored(self) -> int:
        """The number of its rows that have logits: the root and all after it, or none."""
        return self.draft.num_rows if self.logits else 0


class Scorer(Protocol):
    """What several sequences can ask at once: a draft model (a `Target`), or a draft head."""

    def score(self, work: Sequence[Any]) -> Sequence[Any]:
        """One pass over what several sequences ask for; an answer for each, in order.

        Changes nothing that counts: the same work may be scored again.
        """
        ...


class Ask(NamedTuple):
    """A pass that drafting waits for.

    Args:
        model: who runs it: asks of one model are run together.
        work: this sequence's part of it, of the model's own kind; `Work` for a `Target`.
        ends_round: whether what comes after it can wait for the next round, as in a long text that
            is read in parts: then nobody else waits for it.
        text: names what it reads where others can take it over; None where they cannot. One pass is
            run for all that read one text, in one round.
    """

    model: Scorer
    work: Any
    ends_round: bool = False
    text: Hashable = None


Steps = Generator[Ask, Any, T]
"""Drafting in the making: yields what it asks, is sent the answer (`Scores` by a `Target`), and
returns its result. A pass that failed is raised where it was asked for. None comes in place of the
answer to an `Ask` with a `text` that another sequence reads: it is asked again if it is missing."""


class Prefixes(Protocol):
    """What a target keeps of texts that it has read, for others that begin the same.

    Texts are kept in the chunks in which they were read. A chunk that was taken is what the pass
    over it would have written, so where chunks end, nothing tells a sequence that took one from
    a sequence that read it.
    """

    @property
    def is_on(self) -> bool:
        """Whether anything is kept."""
        ...

    def resize(self, max_bytes: int) -> None:
        """Keep at most so many bytes, those used last; 0 keeps nothing."""
        ...

    def held(self) -> AbstractContextManager[None]:
        """Keep what is read meanwhile: within the limit, or all of it if that is 0."""
        ...

    def remember(self, slot: Any, start: int, end: int | None = None) -> None:
        """Keep the committed tokens of a slot from `start` to `end`, which one pass has read.

        None is the end of the slot.
        """
        ...

    def recall(self, slot: Any, tokens: Sequence[int]) -> bool:
        """Append tokens to a slot if just these were read after its text; whether they were."""
        ...


class Target(Protocol):
    """A model and its cache. A slot is one sequence's place in it; its type is the target's own.

    `score` receives the committed tokens that are not cached yet, the last of them as the root of a
    draft. `commit` moves them, with the accepted path, into the cache. Rollback happens only here.
    One pass serves many slots of different lengths, with prompt chunks and with drafts.
    """

    @property
    def info(self) -> TargetInfo:
        """The target's vocabulary, its limits and what it gives to drafters."""
        ...

    @property
    def prefixes(self) -> Prefixes | None:
        """What it keeps of texts for others that begin the same; None if it cannot."""
        ...

    def open(self, capacity: int) -> Any:
        """A fresh slot for at most `capacity` tokens.

        Raises:
            ContextOverflow: more than `info.max_length`.
        """
        ...

    def slot_bytes(self, capacity: int) -> int:
        """The memory that a slot for `capacity` tokens takes when it is full, in bytes."""
        ...

    def length(self, slot: Any) -> int:
        """The number of cached tokens."""
        ...

    def score(self, work: Sequence[Work]) -> list[Scores]:
        """One pass over all committed tokens, drafts and auxiliary rows.

        Cached lengths do not change. A target may split what is too long for one pass.
        """
        ...

    def commit(self, slot: Any, path: Sequence[int]) -> None:
        """Keep the tokens of the slot's last `score` and the nodes of `path`; drop the rest."""
        ...

    def rollback(self, slot: Any, length: int) -> None:
        """Cut the cache to its first `length` tokens."""
        ...

    def view(self, slot: Any) -> TargetView:
        """What a drafter on the sequence of `slot` may use of the target."""
        ...

    def close(self, slot: Any) -> None:
        """Free the slot."""
        ...


class Verifier(Protocol):
    """A rule that accepts or rejects a draft: a pure function of p, the draft and the noise.

    Most rules walk down the draft: they ask for the distribution after a node once they have
    accepted it. A rule that asks for distributions after tokens that it may still reject declares
    the trait `looks_ahead` (`core.traits`).
    """

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    @property
    def exact(self) -> bool:
        """Whether the output is distributed as p for every draft that it takes."""
        ...

    @property
    def couples(self) -> bool:
        """Whether the tokens follow from p and the noise alone, whatever is drafted.

        The drafter's draws then share the noise of the target's draws at each position, so that
        they agree as often as possible.
        """
        ...

    @property
    def schemes(self) -> frozenset[Scheme]:
        """The ways of drawing siblings that it supports. The engine refuses any other."""
        ...

    @property
    def needs_chain(self) -> bool:
        """Whether it accepts chains only."""
        ...

    def verify(
        self, draft: Draft, p: Callable[[int], Tensor], noise: Noise, position: int
    ) -> Verdict:
        """Decide.

        Args:
            draft: the proposal.
            p: the target's distribution `[V]` after a node, with `ROOT` for the last committed
                token. It is computed when first requested. So a rule that asks only for the nodes
                it reaches pays only for those, and processors see each committed position once, in
                order. Do not change the tensor.
            noise: the source of randomness for every decision.
            position: the absolute position of the first draft token.
        """
        ...


class ControllerSession(Protocol):
    """Chooses the draft lengths of one sequence."""

    def budget(self) -> Budget:
        """How far to draft this round. May depend on the past only."""
        ...

    def observe(self, outcome: Outcome) -> None:
        """Take in the outcome of the round."""
        ...


class Controller(Protocol):
    """A rule for the draft length.

    Holds settings only; see `core.traits` for what it may declare.
    """

    @property
    def name(self) -> str:
        """The name under which it is registered."""
        ...

    def open(self, opening: Opening = Opening()) -> ControllerSession:
        """Start a session for a sequence; `opening` says what is known of it in advance."""
        ...
