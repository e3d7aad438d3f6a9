"""Sampling options by other means: `transformers` for what it has, a loop by hand for the rest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.logits_process import (
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from paceline.core.sampling import SamplingParams


def their_scores(params: SamplingParams, tokens: Sequence[int], logits: Tensor) -> Tensor:
    """The scores of `transformers` with the processors that its `generate` builds, in its order."""
    steps: list[Any] = []
    if params.repetition_penalty != 1:
        steps.append(RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.temperature not in (0, 1):
        steps.append(TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(MinPLogitsWarper(params.min_p))
    ids = torch.tensor([list(tokens)], dtype=torch.long)
    scores: Tensor = LogitsProcessorList(steps)(ids, logits.clone()[None])
    return scores[0]


def processed_by_hand(
    params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], logits: Tensor
) -> list[float]:
    """The OpenAI formula, mu[j] - c[j] * frequency - (c[j] > 0) * presence, after repetition."""
    result = []
    for token, value in enumerate(logits.tolist()):
        if token in prompt or token in answer:
            penalty = params.repetition_penalty
            value = value / penalty if value > 0 else value * penalty
        count = list(answer).count(token)
        value -= count * params.frequency_penalty + (count > 0) * params.presence_penalty
        value += params.logit_bias.get(token, 0.0)
        allowed = params.allowed_token_ids
        if token in params.banned_token_ids or (allowed is not None and token not in allowed):
            value = -math.inf
        result.append(value)
    return result


def reference_law(
    params: SamplingParams, prompt: Sequence[int], answer: Sequence[int], logits: Tensor
) -> Tensor:
    """The law of the next token; params.temperature must be above 0."""
    processed = torch.tensor(processed_by_hand(params, prompt, answer, logits), dtype=torch.float64)
    warping = SamplingParams(
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
    )
    return their_scores(warping, [*prompt, *answer], processed).softmax(dim=-1)
