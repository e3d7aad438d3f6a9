"""The lesson, and rounds of the model for it: `/lesson`, `/lesson/info`, `POST /lesson/rounds`.

A race is two answers to one prompt, plain and speculative, decoded one after the other so that they
do not disturb each other. It is sent as it comes, each event one line of `paceline.trace/1`.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from paceline.errors import PacelineError
from paceline.generate import plugins
from paceline.generate.async_engine import Answers
from paceline.generate.jobs import Job
from paceline.lesson import served_lesson
from paceline.server.answering import EventStream, answering, data_event
from paceline.server.errors import ApiError
from paceline.server.fields import Fields, Sampled
from paceline.server.service import Service
from paceline.trace import LaneRecorder, Recording

ROOT = "/lesson"
FEWEST_TOKENS, MOST_TOKENS = 8, 256
HOTTEST = 2.0
LONGEST_DRAFT = 16
_MACHINE = ("paceline", "torch", "cpu", "cores", "threads")
"""What a race tells of the machine that it was run on."""


class RaceRequest(Fields):
    """A prompt, and how it is answered in both lanes."""

    prompt: Annotated[str, Field(min_length=1)]
    drafter: Annotated[str, Field(min_length=1, max_length=200)] | None = None
    num_draft_tokens: Literal["auto"] | Annotated[int, Field(ge=0, le=LONGEST_DRAFT)] = "auto"
    temperature: Annotated[float, Field(ge=0, le=HOTTEST)] = 0.0
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    max_tokens: Annotated[int, Field(ge=FEWEST_TOKENS, le=MOST_TOKENS)] = 64
    verifier: Annotated[str, Field(min_length=1, max_length=200)] | None = None


def routes(service: Service) -> APIRouter:
    """The routes: the page, its files, what it may ask for, and races."""
    router = APIRouter(tags=["Lesson"])
    assets, policy = served_lesson(ROOT)
    headers = {"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"}

    async def asset(request: Request) -> Response:
        found = assets[request.url.path]
        return Response(found.content, media_type=found.media_type, headers=headers)

    for path in assets:
        router.add_api_route(path, asset, include_in_schema=path == ROOT, response_model=None)

    told = offered(service)

    @router.get(f"{ROOT}/info")
    async def info() -> dict[str, Any]:
        """The model, the drafters and rules to choose from, and the limits."""
        return told

    @router.post(f"{ROOT}/rounds", response_model=None)
    async def rounds(fields: RaceRequest, request: Request) -> Response:
        """A race as server-sent events, each a line of a trace."""
        refuse_other_origin(request)
        try:
            race = await asyncio.to_thread(Race.prepare, service, fields)
        except Exception as error:
            raise service.plain(error) from error
        stack = AsyncExitStack()
        first = race.submit(race.lanes[0], stack)
        return EventStream(race.events(request, first, stack), stack)

    return router


def refuse_other_origin(request: Request) -> None:
    """Refuse what a page of another site sends: a browser says where it comes from."""
    origin = request.headers.get("origin")
    own = f"{request.url.scheme}://{request.headers.get('host', '')}"
    if origin is not None and origin != own:
        raise ApiError(
            403, f"races are for the page of this server; the request came from {origin:.80}"
        )


def offered(service: Service) -> dict[str, Any]:
    """What a race may be asked for: the drafters that this server can open for its model."""
    limits = service.settings.limits
    most = min(MOST_TOKENS, limits.answer_tokens or MOST_TOKENS)
    base = service.settings.options
    first = [base.get("drafter"), "tree" if base.get("draft_model") is not None else "ngram"]
    # A drafter that is an object has no name to choose it by.
    names = [name for name in first if isinstance(name, str)] + plugins.names("drafter")
    rules = {name: plugins.find("verifier", name) for name in plugins.names("verifier")}
    return {
        "model": service.settings.name,
        "drafters": [{"name": name} for name in dict.fromkeys(names) if _is_offered(service, name)],
        "verifiers": [
            {"name": name, "exact": rule.make({}).exact}
            for name, rule in rules.items()
            if not rule.missing({})
        ],
        "limits": {
            "tokens": [min(FEWEST_TOKENS, most), most],
            "temperature": [0, HOTTEST],
            "num_draft_tokens": [0, LONGEST_DRAFT],
        },
    }


def _is_offered(service: Service, name: str) -> bool:
    if name == "none":
        return False  # the other lane
    try:
        drafter = service.model.drafter(**_drafting(service, name, "auto"))
    except PacelineError:
        return False
    return not service.model.target.info.lacks(drafter.needs)


def _drafting(service: Service, drafter: str | None, length: Any) -> dict[str, Any]:
    """The options of a drafter by its name; None is the server's own."""
    asked = {"drafter": drafter, "num_draft_tokens": length}
    return Sampled.model_validate({"speculative": asked}).drafting(service.settings.options)


@dataclass(frozen=True, slots=True)
class Race:
    """Two answers to one prompt, in the making.

    Args:
        service: what decodes.
        header: the first line of the trace.
        lanes: the plain answer, then the speculative one.
    """

    service: Service
    header: dict[str, Any]
    lanes: tuple[Job, Job]

    @classmethod
    def prepare(cls, service: Service, fields: RaceRequest) -> Race:
        """The race that is asked for; nothing is decoded yet.

        Raises:
            PacelineError: what is asked for is invalid.
        """
        model = service.model
        has_chat = bool(getattr(model.tokenizer, "chat_template", None))
        prompt = [{"role": "user", "content": fields.prompt}] if has_chat else fields.prompt
        service.check_prompt(model.encode(prompt))
        shared: dict[str, Any] = {
            "temperature": fields.temperature,
            "seed": fields.seed,
            "max_tokens": service.max_tokens(fields.max_tokens),
        }
        recording = Recording()
        drafting = _drafting(service, fields.drafter, fields.num_draft_tokens)
        if fields.verifier is not None:
            drafting |= {"verify": fields.verifier, "verify_options": None}
        (fast,) = model.prepare([prompt], trace=recording, **shared, **drafting)
        # A rule that couples gives the tokens that plain decoding gives by that rule.
        rule = fast.request.verifier
        plainly: dict[str, Any] = {"drafter": "none", "verify": rule if rule.couples else None}
        (plain,) = model.prepare([prompt], trace=recording, **shared, **plainly)
        header = recording.header()
        return cls(
            service,
            {
                **header,
                "model": service.settings.name,
                "lanes": {name: header["lanes"][name] for name in ("plain", "speculative")},
                "environment": {name: header["environment"][name] for name in _MACHINE},
            },
            (plain, fast),
        )

    def submit(self, job: Job, stack: AsyncExitStack) -> Answers:
        """Have a lane decoded; it is cancelled with the response.

        Raises:
            ApiError: there is no room for it.
        """
        try:
            answers = self.service.engine.submit_jobs([job])
        except Exception as error:
            raise self.service.plain(error) from error
        stack.callback(answers.cancel)
        return answers

    async def events(
        self, request: Request, first: Answers, stack: AsyncExitStack
    ) -> AsyncIterator[bytes]:
        """The lines of the trace; a lane that fails ends with a line that says so."""
        yield data_event(self.header)
        answers: Answers | None = first
        for job in self.lanes:
            lane = job.recorder
            assert lane is not None
            try:
                current = self.submit(job, stack) if answers is None else answers
                async with answering(self.service, request, current) as items:
                    async for _ in items:
                        for line in lane.drain():
                            yield data_event(line)
            except ApiError as error:
                yield data_event(failed(lane, error))
            answers = None


def failed(lane: LaneRecorder, error: ApiError) -> dict[str, Any]:
    """The last line of a lane that ends by an error."""
    last = lane.lines[-1] if lane.lines else {"t": 0.0, "id": 0}
    return {
        "event": "failed",
        "lane": lane.lane,
        "t": last["t"],
        "id": last["id"],
        "error": error.message,
    }
