"""The logits processors of `generate`: for one row, for a draft, and those that we do faster."""

from __future__ import annotations

import copy
from collections.abc import Callable
from types import BuiltinFunctionType, FunctionType
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation import logits_process as library

from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput


def split_warpers(processors: LogitsProcessorList) -> tuple[LogitsProcessorList, SamplingParams]:
    """The processors up to temperature and truncation, and these as sampling options.

    The distribution is the same, but our version does not sort the vocabulary: over 150,000 tokens
    the library's top-p takes longer than a pass of a small model. Processors in another order, or
    with settings of their own, stay processors.

    Args:
        processors: those of a call that samples.
    """
    rest, options = list(processors), dict[str, Any](temperature=1.0)
    for kind, name in _WARPERS:
        if rest and type(rest[-1]) is kind and _is_plain(rest[-1]):
            options[name] = getattr(rest.pop(), name)
    return LogitsProcessorList(rest), SamplingParams(**options)


_WARPERS = (
    (library.MinPLogitsWarper, "min_p"),
    (library.TopPLogitsWarper, "top_p"),
    (library.TopKLogitsWarper, "top_k"),
    (library.TemperatureLogitsWarper, "temperature"),
)
"""From the last to the first, with the setting that creates each."""


def _is_plain(warper: Any) -> bool:
    """Whether a warper does what the option of the same name does."""
    return (
        getattr(warper, "filter_value", -torch.inf) == -torch.inf
        and getattr(warper, "min_tokens_to_keep", 1) == 1
        and getattr(warper, "top_p", 1) > 0
    )


def pure_ones(processors: LogitsProcessorList) -> LogitsProcessorList:
    """Those that are functions of only the text and the logits, so they may see drafts."""
    return LogitsProcessorList(p for p in processors if type(p) in _PURE)


def processors_of_row(
    processors: LogitsProcessorList, row: int, num_rows: int, rows_per_prompt: int
) -> LogitsProcessorList:
    """The processors for one row of a batch, which they see as a batch of one.

    The per-row data of the library's own processors is cut out for this row. Others may keep state,
    as grammars do: the first row has the object itself, and every other row a copy of its own.
    Functions are shared.

    Args:
        processors: those of the whole batch.
        row, num_rows: which row of how many.
        rows_per_prompt: `num_return_sequences`.

    Raises:
        InvalidInput: a processor only works on the whole batch.
    """
    if num_rows == 1:
        return processors
    place = row, row // rows_per_prompt
    return LogitsProcessorList(_of_row(processor, *place) for processor in processors)


def _of_row(processor: Any, row: int, prompt: int) -> Any:
    if (cut := _OF_ROW.get(type(processor))) is not None:
        return cut(processor, row, prompt)
    stateless = type(processor) in _PURE or isinstance(
        processor, (FunctionType, BuiltinFunctionType)
    )
    return processor if stateless or row == 0 else copied(processor)


def copied(processor: Any) -> Any:
    """A copy with a state of its own. Parts that cannot be copied are shared, as they are constant.

    Compiled grammars, for example, are handles of another language: they do not change, and the
    state next to them is in lists and numbers.
    """
    try:
        return copy.deepcopy(processor)
    except (TypeError, RuntimeError, NotImplementedError):
        mine = copy.copy(processor)
        for name, value in vars(processor).items():
            setattr(mine, name, _copied_value(value))
        return mine


def _copied_value(value: Any) -> Any:
    if isinstance(value, (list, set)):
        return type(value)(_copied_value(item) for item in value)
    if isinstance(value, dict):
        return {key: _copied_value(item) for key, item in value.items()}
    try:
        return copy.deepcopy(value)
    except (TypeError, RuntimeError, NotImplementedError):
        return value


def _repetition(processor: Any, row: int, prompt: int) -> Any:
    mine = copy.copy(processor)
    if isinstance(mine.prompt_ignore_length, Tensor):
        mine.prompt_ignore_length = mine.prompt_ignore_length[row : row + 1]
    return mine


def _prefix(processor: Any, row: int, prompt: int) -> Any:
    allowed = processor._prefix_allowed_tokens_fn
    return library.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(prompt, ids), 1)


def _prompt_repetition(processor: Any, row: int, prompt: int) -> Any:
    mine = copy.copy(processor)
    mine.encoder_input_ids = mine.encoder_input_ids[prompt : prompt + 1]
    return mine


def _prompt_ngrams(processor: Any, row: int, prompt: int) -> Any:
    mine = copy.copy(processor)
    mine.batch_size, mine.generated_ngrams = 1, [mine.generated_ngrams[prompt]]
    return mine


def _stateful(processor: Any, row: int, prompt: int) -> Any:
    return copy.deepcopy(processor)


def _guidance(processor: Any, row: int, prompt: int) -> Any:
    raise InvalidInput(
        "guidance_scale is not supported for a batch; give one prompt at a time, with "
        "num_return_sequences=1"
    )


_OF_ROW: dict[type, Callable[[Any, int, int], Any]] = {
    library.RepetitionPenaltyLogitsProcessor: _repetition,
    library.PrefixConstrainedLogitsProcessor: _prefix,
    library.EncoderRepetitionPenaltyLogitsProcessor: _prompt_repetition,
    library.EncoderNoRepeatNGramLogitsProcessor: _prompt_ngrams,
    library.SynthIDTextWatermarkLogitsProcessor: _stateful,
    library.UnbatchedClassifierFreeGuidanceLogitsProcessor: _guidance,
}

_PURE = frozenset(
    {
        library.EncoderNoRepeatNGramLogitsProcessor,
        library.EncoderRepetitionPenaltyLogitsProcessor,
        library.EpsilonLogitsWarper,
        library.EtaLogitsWarper,
        library.ExponentialDecayLengthPenalty,
        library.ForcedBOSTokenLogitsProcessor,
        library.ForcedEOSTokenLogitsProcessor,
        library.InfNanRemoveLogitsProcessor,
        library.LogitNormalization,
        library.MinLengthLogitsProcessor,
        library.MinNewTokensLengthLogitsProcessor,
        library.MinPLogitsWarper,
        library.NoBadWordsLogitsProcessor,
        library.NoRepeatNGramLogitsProcessor,
        library.RepetitionPenaltyLogitsProcessor,
        library.SequenceBiasLogitsProcessor,
        library.SuppressTokensAtBeginLogitsProcessor,
        library.SuppressTokensLogitsProcessor,
        library.TemperatureLogitsWarper,
        library.TopHLogitsWarper,
        library.TopKLogitsWarper,
        library.TopPLogitsWarper,
        library.TypicalLogitsWarper,
        library.WatermarkLogitsProcessor,
    }
)
"""Functions of only the text and the logits. `prefix_allowed_tokens_fn` is the user's code."""
