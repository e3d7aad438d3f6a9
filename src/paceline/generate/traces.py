"""A call that is written down: from the option `trace` to the lane of a recording."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.errors import InvalidInput
from paceline.generate.jobs import Job
from paceline.generate.results import sampling_of
from paceline.trace import LaneRecorder, Recording


def recording_of(given: Any, num_prompts: int) -> Recording | None:
    """The recording that the option means; None for none.

    Raises:
        InvalidInput: it is no file and no recording, the file cannot be written, or there are
            several prompts.
    """
    if given is None:
        return None
    if num_prompts != 1:
        raise InvalidInput(
            f"a trace is of one answer; this call gives {num_prompts}: leave trace out, or "
            "generate them one by one"
        )
    return Recording.of(given)


def lane_for(
    job: Job, recording: Recording, *, model: str, prompt: Any, tokenizer: Any
) -> LaneRecorder:
    """The lane in which `job` is recorded: "plain" without a drafter, else "speculative"."""
    request = job.request
    name = "plain" if request.drafter.name == "none" else "speculative"
    return recording.lane(
        name,
        job.lane(),
        request.prompt,
        tokenizer,
        model=model,
        prompt=prompt_text(prompt, tokenizer),
        sampling={
            **sampling_of(request.params),
            "seed": None if request.params.is_greedy else job.seed,
            "max_tokens": request.max_tokens,
        },
    )


def prompt_text(prompt: Any, tokenizer: Any) -> str:
    """A prompt for readers: of one message its content, of several each with its role.

    >>> prompt_text([{"role": "user", "content": "Why?"}], None)
    'Why?'
    """
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt, Sequence) and all(isinstance(part, Mapping) for part in prompt):
        lines = [(str(part.get("role")), str(part.get("content"))) for part in prompt]
        if len(lines) == 1:
            return lines[0][1]
        return "\n".join(f"{role}: {content}" for role, content in lines)
    ids = [int(token) for token in prompt]
    return " ".join(map(str, ids)) if tokenizer is None else str(tokenizer.decode(ids))
