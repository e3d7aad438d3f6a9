"""Which of the library's processors we do ourselves, and which may see drafts."""

from __future__ import annotations

import inspect
import itertools
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitNormalization,
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation import logits_process as library

from paceline.core.sampling import SamplingParams
from paceline.integrations.huggingface.processors import _OF_ROW, _PURE, split_warpers
from paceline.sampling.warp import SamplingWarp
from tests.tiny_models import tokens_of


def law(processors: list[Any], logits: Tensor, tokens: tuple[int, ...]) -> Tensor:
    """The law of the library: softmax of what its processors leave."""
    scores = LogitsProcessorList(processors)(torch.tensor([tokens]), logits[None].clone())
    return scores[0].softmax(-1)


def split_law(processors: list[Any], logits: Tensor, tokens: tuple[int, ...]) -> Tensor:
    rest, params = split_warpers(LogitsProcessorList(processors))
    warp = SamplingWarp(
        params,
        tokens,
        processors=[lambda seen, row: rest(torch.tensor([seen]), row[None])[0]],
    )
    return warp.law(logits)


@pytest.mark.parametrize("size", [5, 700])
def test_split_warpers_leave_the_law_as_it_is(size: int) -> None:
    generator = torch.Generator().manual_seed(size)
    tokens = tokens_of(6) if size > 64 else (0, 3, 1)
    choices = itertools.product((None, 0.6, 1.7), (None, 1, 4, 50), (None, 0.3, 0.95), (None, 0.1))
    for temperature, top_k, top_p, min_p in choices:
        processors: list[Any] = [RepetitionPenaltyLogitsProcessor(1.3)]
        processors += [TemperatureLogitsWarper(temperature)] if temperature else []
        processors += [TopKLogitsWarper(top_k)] if top_k else []
        processors += [TopPLogitsWarper(top_p)] if top_p else []
        processors += [MinPLogitsWarper(min_p)] if min_p else []
        logits = 3 * torch.randn(size, generator=generator)
        rest, params = split_warpers(LogitsProcessorList(processors))
        assert list(rest) == processors[:1]
        assert params == SamplingParams(
            temperature or 1.0, top_k=top_k or 0, top_p=top_p or 1.0, min_p=min_p or 0.0
        )
        expected = law(processors, logits, tokens)
        found = split_law(processors, logits, tokens)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)
        assert torch.equal(found > 0, expected > 0)


class _Mine(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.flip(-1)


@pytest.mark.parametrize(
    "processors",
    [
        [TopPLogitsWarper(0.5), TopKLogitsWarper(2)],
        [TopKLogitsWarper(2), TemperatureLogitsWarper(0.5)],
        [TopPLogitsWarper(0.5), TopPLogitsWarper(0.5)],
        [TemperatureLogitsWarper(0.5), _Mine()],
        [TopKLogitsWarper(2), LogitNormalization()],
        [TopKLogitsWarper(2, filter_value=-3.0)],
        [TopPLogitsWarper(0.5, min_tokens_to_keep=3)],
        [MinPLogitsWarper(0.9, min_tokens_to_keep=2)],
        [TopPLogitsWarper(0.0)],
        [],
    ],
)
def test_what_is_out_of_the_ordinary_stays_a_processor(processors: list[Any]) -> None:
    logits = torch.tensor([0.1, 2.0, -1.0, 1.5, 1.4])
    expected = law(processors, logits, (1, 2))
    torch.testing.assert_close(split_law(processors, logits, (1, 2)), expected, rtol=0, atol=1e-6)


def test_a_subclass_is_not_what_it_derives_from() -> None:
    class Mine(TemperatureLogitsWarper):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            return scores.flip(-1)

    rest, params = split_warpers(LogitsProcessorList([Mine(0.5)]))
    assert len(rest) == 1
    assert params == SamplingParams(1.0)


JUDGED = {
    "has a state, is built for several models, or is the user's code": """
        AlternatingCodebooksLogitsProcessor BarkEosPrioritizerLogitsProcessor
        ClassifierFreeGuidanceLogitsProcessor DiaClassifierFreeGuidanceLogitsProcessor
        DiaEOSChannelFilterLogitsProcessor DiaEOSDelayPatternLogitsProcessor
        PrefixConstrainedLogitsProcessor SynthIDTextWatermarkLogitsProcessor
        UnbatchedClassifierFreeGuidanceLogitsProcessor
        WhisperNoSpeechDetection WhisperTimeStampLogitsProcessor
    """,
}


def test_every_processor_of_the_library_has_been_judged() -> None:
    """A new one fails here; what is not known to be pure is kept from drafts meanwhile."""
    classes = {
        kind
        for _, kind in inspect.getmembers(library, inspect.isclass)
        if issubclass(kind, LogitsProcessor) and kind is not LogitsProcessor
    }
    others = {getattr(library, name) for names in JUDGED.values() for name in names.split()}
    assert not others & _PURE
    assert classes == others | _PURE
    assert set(_OF_ROW) <= classes
