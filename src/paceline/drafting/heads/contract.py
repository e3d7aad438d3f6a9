"""A draft head: a small network that reads the target's hidden states and guesses what follows.

Heads come in four kinds, and one contract serves them all:

- **one-shot** (Medusa): the logits of every level follow from the final state alone; see
  `one_shot.OneShotState`.
- **sequential** (Hydra, MLPSpeculator, ReDrafter): a level also reads the tokens drafted before it;
  see `sequential.SequentialState`.
- **recurrent** (EAGLE, MTP): like sequential, with keys and values of its own for the text. Such a
  state takes every row of `observe`, and forgets what was drafted when a draft starts.
- **parallel** (DFlash, PARD, P-EAGLE): one pass over a block of masks gives the logits of all
  levels; `start` is told how many are wanted, `follow` only hands them out.

A head takes its randomness from nobody: what is drawn from its logits, and with which law, is
decided in `drafter.HeadSession`, for all of them alike.

The products of a head serve all sequences that draft with it: a state *yields* what it wants of
them, as an `Ask` of its head, and `Head.score` runs what several states ask for in one go.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.protocols import Steps
from paceline.core.target import Need
from paceline.core.view import TargetView


class Level(NamedTuple):
    """What a head says of the tokens of one level.

    Args:
        logits: `[m, Vh]` of any floating dtype, on any device, not normalised; Vh is the number of
            tokens in the head's own vocabulary (`Head.token_ids`).
        acceptance: `[m]`, the head's own estimate of the probability that a token drawn after each
            row is accepted once the tokens before it are, from what was drafted before it alone;
            None if it has none.
    """

    logits: Tensor
    acceptance: Tensor | None = None


class HeadState(Protocol):
    """A head beside one sequence.

    A draft is made level by level. `start` gives the logits of the first level, the tokens after
    the last committed one. Each `follow` is about tokens of the level that was last asked for, and
    gives the logits of the level after them: all siblings and cousins of a level go through the
    head in one product. A chain is a tree with one node a level.
    """

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """Take in final tokens, each with the target's states of the token *before* it.

        A state that does not need them all keeps the last. The tensors may be views of larger ones:
        copy what is kept.

        Args:
            hidden: the states that `Head.needs` names, one row for each of `tokens`: a chunk of the
                prompt, or a round.
            tokens: in the order of the text. The first token of a text follows none and is never
                among them.
        """
        ...

    def start(self, levels: int) -> Steps[Level]:
        """Start a draft; whatever was drafted before is forgotten.

        Called after at least one `observe`.

        Args:
            levels: how many levels may be asked for, at least 1, at most `Head.max_levels`.

        Returns:
            The one row after the last committed token.
        """
        ...

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """The next level: what follows m of the tokens drafted in the last one.

        Args:
            parents: for each of them, the row of the last result (of `start` or `follow`) that it
                was drawn from.
            tokens: the tokens themselves, as ids of the target.

        Returns:
            m rows, one for each of `tokens`.
        """
        ...

    def close(self) -> None:
        """Free what it keeps."""
        ...


class Head(Protocol):
    """The weights of a head: immutable, shared by all sequences."""

    @property
    def name(self) -> str:
        """For messages and reports."""
        ...

    @property
    def drafter(self) -> str:
        """The name of the drafter that drafts with it, such as "medusa"."""
        ...

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """What it reads of the target: `Hidden` states, and perhaps `EMBEDDING` and `HEAD`."""
        ...

    @property
    def max_levels(self) -> int | None:
        """The most tokens that it can draft on a path; None if there is no limit."""
        ...

    @property
    def token_ids(self) -> Tensor | None:
        """`[Vh]`: the target's id of each output, ascending; None if output i is token i."""
        ...

    @property
    def num_bytes(self) -> int:
        """The memory that a draft of one level reads."""
        ...

    def score(self, work: Sequence[Any]) -> Sequence[Any]:
        """Run what states of this head, of one target, ask for: `protocols.Scorer.score`."""
        ...

    def open(self, target: TargetView, capacity: int) -> HeadState:
        """A fresh state for a sequence of at most `capacity` tokens, prompt and answer together.

        Raises:
            InvalidInput: it does not belong to this target.
        """
        ...
