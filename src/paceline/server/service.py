"""What every route stands on: the engine, the settings, and the limits that a request must keep."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

from paceline.errors import ContextOverflow, InvalidInput
from paceline.generate.api import LanguageModel, Prompt
from paceline.generate.async_engine import Answers, Engine
from paceline.generate.jobs import Job
from paceline.server.errors import ApiError, api_error
from paceline.server.fields import Sampled
from paceline.server.metrics import Metrics
from paceline.server.settings import Settings
from paceline.server.tokens import Tokens
from paceline.text import ChatOptions

VERSION = version("paceline")
FINGERPRINT = f"paceline-{VERSION}"
"""What answers tell of the software, as OpenAI's `system_fingerprint`."""


@dataclass(frozen=True, slots=True)
class Service:
    """A model that is served.

    Args:
        engine: decodes for all.
        settings: how it answers.
        metrics: what is counted of it.
        created: when it began to, in seconds since 1970.
    """

    engine: Engine
    settings: Settings
    metrics: Metrics
    created: int = field(default_factory=lambda: int(time.time()))
    tokens: Tokens = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "tokens", Tokens(self.model.tokenizer))

    @property
    def model(self) -> LanguageModel:
        """The model."""
        return self.engine.model

    def check_model(self, name: str | None) -> None:
        """Refuse a request for another model."""
        if name is not None and name != self.settings.name:
            raise ApiError(
                404,
                f"there is no model {name!r:.80} here; this server has {self.settings.name!r}",
                param="model",
                code="model_not_found",
            )

    def check_answers(self, prompts: int, fields: Sampled) -> None:
        """Refuse more answers than one request may ask for."""
        most = self.settings.limits.answers
        if prompts * fields.num_answers > most:
            raise ApiError(
                400,
                f"n times the number of prompts may be {most}; it is "
                f"{prompts * fields.num_answers}",
                param="n",
                code="invalid_value",
            )

    def max_tokens(self, asked: int | None, otherwise: int | None = None) -> int | None:
        """The longest answer; None goes on to the end of the context."""
        most = self.settings.limits.answer_tokens
        if asked is not None and most is not None and asked > most:
            raise InvalidInput(f"an answer may have {most} tokens; {asked} were asked for")
        if asked is not None:
            return asked
        return min((limit for limit in (otherwise, most) if limit is not None), default=None)

    def plain(self, error: Exception) -> ApiError:
        """What a client is told of an error; the model has the name that clients know."""
        told = api_error(error, show=self.settings.show_errors)
        told.message = told.message.replace(self.model.name, self.settings.name)
        return told

    async def submit(
        self,
        prompts: Sequence[Prompt],
        num_answers: int,
        options: Mapping[str, Any],
        chat: ChatOptions | None = None,
    ) -> Answers:
        """Ask for `num_answers` answers to each prompt, those to one prompt in a row.

        Raises:
            ApiError: the request is invalid, or there is no room for it.
        """
        try:
            # Reading a long prompt takes a while, and other clients should not wait for it.
            jobs = await asyncio.to_thread(self._prepare, prompts, num_answers, options, chat)
            return self.engine.submit_jobs(jobs)
        except Exception as error:
            raise self.plain(error) from error

    def _prepare(
        self,
        prompts: Sequence[Prompt],
        num_answers: int,
        options: Mapping[str, Any],
        chat: ChatOptions | None,
    ) -> list[Job]:
        jobs: list[Job] = []
        for prompt in prompts:
            tokens = self.model.encode(prompt, chat)
            self.check_prompt(tokens)
            jobs += self.model.prepare([tokens] * num_answers, samples=True, **options)
        return jobs

    def check_prompt(self, tokens: Sequence[int]) -> None:
        """Refuse a prompt that is longer than prompts may be."""
        most = self.settings.limits.prompt_tokens
        if most is not None and len(tokens) > most:
            raise ContextOverflow(
                f"a prompt may have {most} tokens; this one has {len(tokens)}: shorten it"
            )


def new_id(prefix: str) -> str:
    """A fresh id for an object, as OpenAI's are.

    >>> new_id("chatcmpl").startswith("chatcmpl-")
    True
    """
    return f"{prefix}-{secrets.token_hex(12)}"
