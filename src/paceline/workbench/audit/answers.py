"""Answers of a loaded model for an audit, as `generate` would make them, with their logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from paceline.controllers.fixed import FixedController
from paceline.core.events import Round
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import decode
from paceline.generate.api import LanguageModel, Prompt
from paceline.workbench.audit.scripts import Parts


class NamedPrompt(NamedTuple):
    """A prompt as `generate` takes it, and its name in reports."""

    name: str
    prompt: Prompt


_DRAFTING = (
    "drafter",
    "drafter_options",
    "draft_model",
    "draft_head",
    "draft_storage",
    "draft_head_tokens",
    "num_draft_tokens",
    "controller",
    "controller_options",
)


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """One answer, token by token.

    Args:
        tokens: of the answer.
        logits: the target's logits `[V]` from which each was chosen; empty unless asked for.
        num_draft_tokens, num_accepted_tokens: over all rounds.
    """

    tokens: tuple[int, ...]
    logits: tuple[Tensor, ...]
    num_draft_tokens: int
    num_accepted_tokens: int


def plainly(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options of plain decoding to compare with `options`: the same, without drafting.

    A coupled rule is kept: without a draft it decides which noise a token is drawn with.
    """
    kept = {name: value for name, value in options.items() if name not in _DRAFTING}
    return {**kept, "drafter": NoDrafter(), "controller": FixedController(0)}


def parts_of(model: LanguageModel, prompt: Prompt, options: Mapping[str, Any]) -> Parts:
    """Drafter, rule and controller as `generate` would put them together."""
    (job,) = model.prepare([prompt], **options)
    return Parts(job.request.drafter, job.request.verifier, job.request.controller)


def answer(
    model: LanguageModel, prompt: Prompt, options: Mapping[str, Any], *, logits: bool = False
) -> Answer:
    """The answer to a prompt under the options of `generate`."""
    (found,) = answers(model, [prompt], options, logits=logits)
    return found


def answers(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    options: Mapping[str, Any],
    *,
    seeds: Sequence[int] | None = None,
    logits: bool = False,
) -> list[Answer]:
    """The answers to several prompts, decoded together; each with its seed, if seeds are given.

    Args:
        model: the target.
        prompts: one per answer.
        options: of `LanguageModel.generate`.
        seeds: one per prompt.
        logits: whether to keep the logits.
    """
    if seeds is None:
        jobs = model.prepare(prompts, **options)
    else:
        jobs = [
            model.prepare([prompt], **{**options, "seed": seed})[0]
            for prompt, seed in zip(prompts, seeds, strict=True)
        ]
    requests = [replace(job.request, keep_logits=logits) for job in jobs]
    rounds: list[list[Round]] = [[] for _ in requests]
    for event in decode(model.target, requests):
        if isinstance(event, Round):
            rounds[event.id].append(event)
    return [
        Answer(
            tuple(token for event in found for token in event.tokens),
            tuple(row for event in found if event.logits is not None for row in event.logits),
            sum(event.num_draft_tokens for event in found),
            sum(event.num_accepted_tokens for event in found),
        )
        for found in rounds
    ]


def dtype_of(model: LanguageModel) -> torch.dtype:
    """The dtype that the model computes in; float32, the strictest, if it is unknown."""
    dtype = getattr(model.decoder, "dtype", None)
    return dtype if isinstance(dtype, torch.dtype) else torch.float32


def text_of(model: LanguageModel, tokens: Sequence[int]) -> str:
    """Tokens as text, for reports; their ids if there is no tokenizer."""
    if model.tokenizer is None:
        return str(list(tokens))
    return str(model.tokenizer.decode(list(tokens)))
