"""What a server is told at its start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from paceline.checks import require_int
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one client may ask for.

    Args:
        body_bytes: the size of a request.
        prompt_tokens: the length of a prompt; None leaves it to the context of the model.
        answer_tokens: the length of an answer; None leaves it to the context of the model.
        answers: the answers to one request: `n` times the number of prompts.
        seconds: the time for one request, waiting included.

    Raises:
        InvalidInput: a limit is not above 0.
    """

    body_bytes: int = 4 << 20
    prompt_tokens: int | None = None
    answer_tokens: int | None = None
    answers: int = 16
    seconds: float = 600.0

    def __post_init__(self) -> None:
        for name in ("body_bytes", "prompt_tokens", "answer_tokens", "answers"):
            if (value := getattr(self, name)) is not None:
                require_int(name, value, low=1)
        if not self.seconds > 0:
            raise InvalidInput(f"seconds must be above 0; it is {self.seconds}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a server answers.

    Args:
        name: what clients call the model.
        options: how answers are drafted and verified unless a request says otherwise: options of
            `generate`.
        limits: what one client may ask for.
        api_key: what clients must show; None serves anyone who can connect.
        hosts: the names under which clients may address the server, as browsers tell them; None
            allows all. A server without a key that listens to this machine alone needs it: a page
            of another site could otherwise reach it under a name of its own (DNS rebinding).
        request_metrics: tell with each answer how it was decoded, as vLLM does with
            `--per-request-spec-decode-metrics`.
        show_errors: log what was wrong in full, prompts included.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    limits: Limits = Limits()
    api_key: str | None = field(default=None, repr=False)
    hosts: tuple[str, ...] | None = None
    request_metrics: bool = False
    show_errors: bool = False
