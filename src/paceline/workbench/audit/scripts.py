"""Scripted targets with known distributions, and the configuration adapted to them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.core.drafts import Budget, Outcome
from paceline.core.protocols import Controller, ControllerSession, Drafter, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import Opening
from paceline.testing.heads import TableHead, last_token
from paceline.testing.table import TableTarget

DRAFT_SECONDS, PASS_SECONDS, ROW_SECONDS = 0.1, 1.0, 0.01
"""The times of a draft token, of a pass and of each of its rows, as a controller sees them."""


class Parts(NamedTuple):
    """The drafter, the rule and the controller of a configuration."""

    drafter: Drafter
    verifier: Verifier
    controller: Controller


@dataclass(frozen=True, slots=True, eq=False)
class Script:
    """A target with known distributions, a draft model with known errors, and prompts.

    Args:
        name: its name in reports.
        target: the target.
        draft: replaces a drafter's own model.
        prompts: token ids, with repetitions, so that drafters that copy have something to copy.
    """

    name: str
    target: TableTarget
    draft: TableTarget
    prompts: tuple[tuple[int, ...], ...]


def scripts() -> tuple[Script, ...]:
    """The scripted targets of an audit: two to four tokens, with zero and tiny probabilities."""
    return (
        Script(
            "two tokens",
            _target([[1 / 3, 2 / 3], [0.8, 0.2]]),
            TableTarget(_rows([[2 / 3, 1 / 3], [0.5, 0.5]])),
            ((0, 1, 0), (1,)),
        ),
        Script(
            "three tokens",
            _target([[0.3, 0.4, 0.3], [0.1, 0.6, 0.3], [0.7, 0.0, 0.3]]),
            TableTarget(_rows([[0.6, 0.3, 0.1], [0.3, 0.4, 0.3], [0.2, 0.8, 0.0]])),
            ((1, 2, 0, 1, 2), (0, 1)),
        ),
        Script(
            "four tokens",
            _target([[0.5, 0.25, 0.125, 0.125]] * 4),
            TableTarget(_rows([[0.1, 0.2, 0.3, 0.4]] * 4)),
            ((2, 3, 2, 3),),
        ),
    )


def in_front_of(script: Script, parts: Parts) -> Parts:
    """The configuration, adapted to a scripted target.

    The models of its drafters are replaced by the scripted one, references (texts of another
    vocabulary) are left out, and the controller sees scripted times, so that it decides the same in
    every run.
    """
    return parts._replace(
        drafter=_scripted(parts.drafter, script.draft), controller=ScriptedTimes(parts.controller)
    )


def of_scripts(params: SamplingParams) -> SamplingParams:
    """The sampling options without those that name tokens of another vocabulary."""
    return replace(params, logit_bias={}, allowed_token_ids=None, banned_token_ids=frozenset())


def names_tokens(params: SamplingParams) -> bool:
    """Whether `of_scripts` leaves something out."""
    return bool(
        params.logit_bias or params.banned_token_ids or params.allowed_token_ids is not None
    )


@dataclass(frozen=True, slots=True)
class ScriptedTimes:
    """A controller that gets scripted times instead of measured ones."""

    controller: Controller

    @property
    def name(self) -> str:
        """See `protocols.Controller`."""
        return self.controller.name

    def open(self, opening: Opening = Opening()) -> ScriptedTimesSession:
        """See `protocols.Controller.open`."""
        return ScriptedTimesSession(self.controller.open(opening))


class ScriptedTimesSession:
    """See `protocols.ControllerSession`."""

    def __init__(self, session: ControllerSession) -> None:
        self._session = session

    def budget(self) -> Budget:
        """See `protocols.ControllerSession.budget`."""
        return self._session.budget()

    def observe(self, outcome: Outcome) -> None:
        """See `protocols.ControllerSession.observe`."""
        self._session.observe(
            outcome._replace(
                draft_seconds=DRAFT_SECONDS * len(outcome.draft),
                target_seconds=PASS_SECONDS + ROW_SECONDS * outcome.pass_rows,
                verify_seconds=0.0,
            )
        )


def _scripted(value: Any, draft: TableTarget) -> Any:
    """A drafter with every model in it replaced by the scripted one."""
    if all(hasattr(value, name) for name in ("info", "open", "score", "commit")):
        return draft
    if all(hasattr(value, name) for name in ("drafter", "token_ids", "max_levels", "open")):
        return TableHead(draft, value.drafter, value.max_levels)
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        found = [_scripted(item, draft) for item in value]
        return value if all(a is b for a, b in zip(found, value, strict=True)) else tuple(found)
    if isinstance(value, Mapping):
        return value
    if not is_dataclass(value) or isinstance(value, type):
        return value
    changes: dict[str, Any] = {}
    for item in fields(value):
        if not item.init:
            continue
        before = getattr(value, item.name)
        after = () if item.name == "references" and before else _scripted(before, draft)
        if after is not before:
            changes[item.name] = after
    return replace(value, **changes) if changes else value


def _target(rows: Sequence[Sequence[float]]) -> TableTarget:
    """A target by its laws, with the states that a scripted head reads."""
    return TableTarget(_rows(rows), states=last_token)


def _rows(rows: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)
