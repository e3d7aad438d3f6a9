"""`POST /v1/completions`: texts continued as they are."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field, model_validator
from starlette.responses import JSONResponse, Response

from paceline.errors import InvalidInput
from paceline.generate.async_engine import Answers
from paceline.generate.results import Chunk, Generation
from paceline.server.answering import Items, Payload, streamed, whole
from paceline.server.fields import TOKEN_LOGPROBS, Sampled, TokenId
from paceline.server.forms import StructuredOutputs, form_of
from paceline.server.results import (
    finish_reason,
    request_metrics,
    shown_tokens,
    usage,
    usage_so_far,
)
from paceline.server.service import FINGERPRINT, Service, new_id

MAX_TOKENS = 16
"""The length of an answer unless a request gives one, as in OpenAI's interface."""


class CompletionRequest(Sampled):
    """The fields of a request for text completions."""

    prompt: str | list[str] | list[TokenId] | list[list[TokenId]] = Field(
        description="A text, token ids, or several of either"
    )
    max_tokens: int | None = Field(None, ge=0, lt=2**31)
    logprobs: Annotated[int, Field(ge=0, le=TOKEN_LOGPROBS)] | None = None
    structured_outputs: StructuredOutputs | None = None
    echo: bool | None = None
    best_of: Literal[1] | None = None
    suffix: Literal[""] | None = None
    add_special_tokens: Literal[True] | None = None

    @model_validator(mode="after")
    def _goes_together(self) -> CompletionRequest:
        if self.echo and self.logprobs is not None:
            raise ValueError(
                "echo with logprobs asks for those of the prompt, which are not computed; leave "
                "one of them out"
            )
        if not self.prompt or [] in self.prompts or "" in self.prompts:
            raise ValueError("a prompt is empty; give some text")
        return self

    @property
    def prompts(self) -> list[Any]:
        """Each prompt by itself."""
        given = self.prompt
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            return [given]
        return list(given)


class _Completion:
    """One request on its way: what its answers have in common."""

    def __init__(self, service: Service, fields: CompletionRequest, answers: Answers) -> None:
        self.service, self.fields, self.answers = service, fields, answers
        requests = [member.job.request for member in answers.members]
        self.ends = requests[0].stop_token_ids
        self.prompt_tokens = sum(len(request.prompt) for request in requests[:: fields.num_answers])
        self.tokens = service.tokens
        self.head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": service.settings.name,
            "system_fingerprint": FINGERPRINT,
        }
        self.echoes = [self._echo(list(request.prompt)) for request in requests]

    def _echo(self, prompt: list[int]) -> str:
        """The prompt's text if it is to be repeated."""
        if not self.fields.echo:
            return ""
        return str(self.service.model.tokenizer.decode(prompt, skip_special_tokens=True))

    def _usage(self, generations: Sequence[Generation]) -> Payload:
        firsts = self.answers.members[:: self.fields.num_answers]
        cached = sum(member.num_cached_tokens for member in firsts)
        return usage(self.prompt_tokens, generations, cached=cached)

    def whole(self, generations: Sequence[Generation]) -> Payload:
        """The response with all answers."""
        choices = [
            {
                "index": index,
                "text": self.echoes[index] + generation.text,
                "logprobs": self._logprobs(
                    generation, shown_tokens(generation.token_ids, self.ends), 0
                ),
                "finish_reason": finish_reason(generation),
            }
            for index, generation in enumerate(generations)
        ]
        told = {
            **self.head,
            "choices": choices,
            "usage": self._usage(generations),
        }
        return told | request_metrics(self.service, self.answers.members)

    def _logprobs(
        self, source: Generation | Chunk, tokens: tuple[int, ...], offset: int
    ) -> dict[str, Any] | None:
        if self.fields.logprobs is None:
            return None
        shown = shown_tokens(tokens, self.ends)
        return self.tokens.completion_logprobs(
            shown, source.logprobs or (), source.top_logprobs or (), offset
        )

    async def parts(self, items: Items) -> AsyncIterator[Payload]:
        """The objects of a stream."""
        done: list[Generation] = []
        lengths = [0] * len(self.answers.members)
        counts = [0] * len(self.answers.members)
        fields = self.fields
        for index, text in enumerate(self.echoes):
            if text:
                yield self._part(index, text, None, None, 0)
        async for index, item in items:
            if isinstance(item, Generation):
                done.append(item)
                last = self._part(index, "", None, finish_reason(item), sum(counts))
                yield last | request_metrics(self.service, [self.answers.members[index]])
                continue
            counts[index] += len(item.tokens)
            tokens = shown_tokens(item.tokens, self.ends)
            if item.text or (tokens and fields.logprobs is not None):
                logprobs = self._logprobs(item, item.tokens, lengths[index])
                lengths[index] += sum(len(self.tokens.text_of(token)) for token in tokens)
                yield self._part(index, item.text, logprobs, None, sum(counts))
        if fields.with_usage:
            yield {**self.head, "choices": [], "usage": self._usage(done)}

    def _part(
        self, index: int, text: str, logprobs: Any, reason: str | None, answered: int
    ) -> Payload:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        told: Payload = {**self.head, "choices": [choice]}
        if self.fields.with_usage:
            so_far = usage_so_far(self.prompt_tokens, answered)
            told["usage"] = so_far if self.fields.usage_always else None
        return told


def routes(service: Service) -> APIRouter:
    """The route."""
    router = APIRouter(tags=["OpenAI"])

    @router.post("/v1/completions", response_model=None)
    async def complete(fields: CompletionRequest, request: Request) -> Response:
        """Continue one text or several."""
        service.check_model(fields.model)
        prompts = fields.prompts
        service.check_answers(len(prompts), fields)
        try:
            options = {
                **fields.drafting(service.settings.options),
                **fields.sampling(),
                "max_tokens": service.max_tokens(fields.max_tokens, MAX_TOKENS),
                "logprobs": fields.logprobs,
                "structured_outputs": form_of(None, fields.structured_outputs),
            }
        except InvalidInput as error:
            raise service.plain(error) from error
        answers = await service.submit(prompts, fields.num_answers, options)
        completion = _Completion(service, fields, answers)
        if fields.stream:
            return await streamed(service, request, answers, completion.parts)
        return JSONResponse(completion.whole(await whole(service, request, answers)))

    return router
