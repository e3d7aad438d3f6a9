"""Heads of each kind whose outputs are scripted, and a table target whose states they read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import done
from paceline.core.protocols import Steps
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import HeadState, Level
from paceline.drafting.heads.drafter import HeadDrafter
from paceline.drafting.heads.one_shot import OneShotState, read_together
from paceline.drafting.heads.sequential import SequentialState, Stepped, step_together
from paceline.testing.table import TableTarget

STATE = 3


def state_of(text: Sequence[int]) -> Tensor:
    """The last two tokens and the length: a state that says what the text says."""
    return torch.tensor([text[-1], text[-2] if len(text) > 1 else -1, len(text)]).double()


def scripted_table(
    vocab_size: int = 3, seed: int = 1, *, max_length: int | None = None
) -> TableTarget:
    """A random law over the last two tokens, with states, in float64."""
    generator = torch.Generator().manual_seed(seed)
    shape = (vocab_size,) * 3
    laws = (2 * torch.randn(shape, generator=generator, dtype=torch.float64)).softmax(dim=-1)
    return TableTarget(
        lambda text: laws[(0, 0, *text)[-2:]],
        vocab_size=vocab_size,
        max_length=max_length,
        states=state_of,
        num_layers=2,
        embedding=torch.eye(vocab_size, dtype=torch.float64),
    )


def row_of(vocab_size: int, *key: Any) -> Tensor:
    """Random logits that follow from a key."""
    seed = 0
    for part in key:
        seed = (seed * 1_000_003 + int(part) + 7) % (1 << 62)
    generator = torch.Generator().manual_seed(seed)
    return 1.5 * torch.randn(vocab_size, generator=generator, dtype=torch.float64)


@dataclass(frozen=True)
class ScriptedHead:
    """What all kinds share.

    Args:
        vocab_size: of the head.
        token_ids: see `Head.token_ids`.
        levels: see `Head.max_levels`.
    """

    vocab_size: int = 3
    token_ids: Tensor | None = None
    levels: int | None = None

    name: ClassVar[str] = "scripted"
    drafter: ClassVar[str] = "scripted"
    num_bytes: ClassVar[int] = 0
    needs: ClassVar[frozenset[Need | Hidden]] = frozenset({Hidden(final=True)})

    @property
    def max_levels(self) -> int | None:
        return self.levels

    def score(self, work: Sequence[Any]) -> Sequence[Any]:
        raise NotImplementedError


class Runner:
    """Runs what states ask for, by a function."""

    def __init__(self, score: Callable[[Sequence[Any]], Sequence[Any]]) -> None:
        self.score = score


@dataclass(frozen=True)
class OneShotHead(ScriptedHead):
    """Marginals: nothing drafted is read."""

    def open(self, target: TargetView, capacity: int) -> HeadState:
        def read(final: Tensor, levels: int, target: TargetView) -> Tensor:
            rows = [
                torch.stack([row_of(self.vocab_size, *row, level) for level in range(levels)])
                for row in final.tolist()
            ]
            return torch.stack(rows)

        return OneShotState(Runner(lambda work: read_together(read, work)), target)


@dataclass(frozen=True)
class SequentialHead(ScriptedHead):
    """Reads the tokens drafted so far, and remembers each of them in its state."""

    def open(self, target: TargetView, capacity: int) -> HeadState:
        def step(level: int, states: Tensor, tokens: Tensor, target: TargetView) -> Stepped:
            assert states.shape[1] == STATE + level
            states = torch.cat([states, tokens[:, None].double()], dim=1)
            rows = [row_of(self.vocab_size, *state) for state in states.tolist()]
            return Stepped(torch.stack(rows), states)

        return SequentialState(Runner(lambda work: step_together(step, work)), target)


class Memory:
    """A recurrent state: it keeps every row of the text with its token, and the drafted paths."""

    def __init__(self, head: RecurrentHead) -> None:
        self._head = head
        self.text: list[tuple[list[float], int]] = []
        self._paths: list[tuple[int, ...]] = []

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        assert set(hidden.layers) == {0, 2}
        assert hidden.final is None
        assert hidden.num_rows == len(tokens)
        rows = hidden.layers[2].tolist()
        self.text += [(row, token) for row, token in zip(rows, tokens, strict=True)]
        if self._head.log is not None:
            self._head.log.append(tuple(tokens))

    def start(self, levels: int) -> Steps[Level]:
        self._paths = [()]
        return done(Level(self._rows()))

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        self._paths = [
            (*self._paths[parent], token) for parent, token in zip(parents, tokens, strict=True)
        ]
        return done(Level(self._rows()))

    def _rows(self) -> Tensor:
        said = [int(row[0]) for row, _ in self.text[:1]] + [token for _, token in self.text]
        key = [value for row, token in self.text[-3:] for value in (*row, token)]
        # A row's state is that of the token before: its last token, and how long the text was.
        for number, (row, _) in enumerate(self.text):
            assert row == state_of(said[: number + 1]).tolist()
        rows = [row_of(self._head.vocab_size, *key, *path) for path in self._paths]
        return torch.stack(rows)

    def close(self) -> None:
        self.text.clear()


@dataclass(frozen=True)
class RecurrentHead(ScriptedHead):
    """Reads two layers and keeps all of the text."""

    log: list[tuple[int, ...]] | None = None

    needs: ClassVar[frozenset[Need | Hidden]] = frozenset({Hidden((0, 2))})

    def open(self, target: TargetView, capacity: int) -> HeadState:
        return Memory(self)


@dataclass(frozen=True, slots=True)
class ScriptedDrafter(HeadDrafter):
    """A drafter of scripted heads."""

    name: ClassVar[str] = "scripted"


KINDS = {"one-shot": OneShotHead(), "sequential": SequentialHead(), "recurrent": RecurrentHead()}


def cut(head: Any, token_ids: Sequence[int]) -> Any:
    """The same head over some of the target's tokens."""
    return replace(head, vocab_size=len(token_ids), token_ids=torch.tensor(token_ids))
