"""A draft head whose laws are scripted, for tests and for the audit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import done
from paceline.core.protocols import Steps, Work
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Level
from paceline.testing.table import TableTarget


def last_token(text: Sequence[int]) -> Tensor:
    """The state of a text for a `TableHead`: the last token, as a vector of one number.

    >>> last_token((5, 7))
    tensor([7.], dtype=torch.float64)
    """
    return torch.tensor([text[-1]], dtype=torch.float64)


@dataclass(frozen=True, slots=True, eq=False)
class TableHead:
    """A `drafting.heads.contract.Head` that says what a table says after the text and the draft.

    It needs a `TableTarget` whose states are those of `last_token`.

    Args:
        table: the laws of the head.
        drafter: the name of the drafter that drafts with it.
        max_levels: see `Head.max_levels`.

    Example:
        >>> TableHead(TableTarget(torch.tensor([0.75, 0.25])), "medusa").drafter
        'medusa'
    """

    table: TableTarget = field(repr=False)
    drafter: str
    max_levels: int | None = None

    @property
    def name(self) -> str:
        """See `Head.name`."""
        return "scripted"

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `Head.needs`."""
        return frozenset({Hidden(final=True)})

    @property
    def token_ids(self) -> None:
        """See `Head.token_ids`."""

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        return 0

    def score(self, work: Sequence[Any]) -> Sequence[Any]:
        """See `Head.score`: its states ask for nothing."""
        raise NotImplementedError

    def open(self, target: TargetView, capacity: int) -> TableHeadState:
        """See `Head.open`."""
        return TableHeadState(self.table)


class TableHeadState:
    """See `drafting.heads.contract.HeadState`. It remembers the text, and the paths of a level."""

    def __init__(self, table: TableTarget) -> None:
        self._table = table
        self._text: list[int] = []
        self._paths: list[tuple[int, ...]] = []

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `HeadState.observe`."""
        assert hidden.final is not None
        if not self._text:  # the first token follows none, so only its state tells of it
            self._text.append(int(hidden.final[0, 0]))
        self._text += tokens

    def start(self, levels: int) -> Steps[Level]:
        """See `HeadState.start`."""
        return done(Level(self._level([()])))

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """See `HeadState.follow`."""
        paths = [
            (*self._paths[parent], token) for parent, token in zip(parents, tokens, strict=True)
        ]
        return done(Level(self._level(paths)))

    def _level(self, paths: list[tuple[int, ...]]) -> Tensor:
        self._paths = paths
        slots = [self._table.open(len(self._text) + len(path)) for path in paths]
        work = [Work(slot, [*self._text, *path]) for slot, path in zip(slots, paths, strict=True)]
        return torch.cat([scores.logits for scores in self._table.score(work)])

    def close(self) -> None:
        """See `HeadState.close`."""
        self._text.clear()
