"""One row of a batch, as the logits processors and stopping criteria of transformers see it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList
from transformers.generation import logits_process as library

from paceline.errors import InvalidInput


class Row:
    """A row's own sequence, without padding for the engine and with it for transformers.

    `process` and `stop` are the engine's processor and stop rule. Under a rule that walks (see
    `math.warp.SamplingWarp`) they call in the order of `generate`: the processors once for each
    token, and the stopping criteria after it, once too. A processor is never called behind the
    end of the answer.

    Args:
        ids: the padded prompt `[n]`, where the processors want their tensors.
        padding: how many of them are padding, all on the left.
        processors: the row's own, see `processors_of_row`.
        criteria: what ends the row.
        keep_scores: hand the criteria the processed scores, as `generate` does where they are
            asked for.
    """

    def __init__(
        self,
        ids: Tensor,
        padding: int,
        processors: LogitsProcessorList,
        criteria: StoppingCriteriaList,
        *,
        keep_scores: bool = False,
    ) -> None:
        self.padding = padding
        self.prompt: list[int] = ids[padding:].tolist()
        self._processors, self._criteria = processors, criteria
        self._pure = LogitsProcessorList(p for p in processors if type(p) in _PURE)
        self._final, self._num_final = ids, len(self.prompt)
        self._ends: dict[tuple[int, ...], bool] = {}
        self._scores: dict[int, Tensor] | None = {} if keep_scores else None

    def process(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        """The processed scores behind `tokens`, float32, as in `generate`."""
        if self._end(tokens) is not None:
            return logits  # of a token behind the end, which will not come out
        scores = _call(self._processors, self._padded(tokens), logits)
        if self._scores is not None:
            self._scores[len(tokens)] = scores
        return scores[0].to(logits.device)

    def guide(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        """The same for draft logits, by those processors alone that are functions of the text.

        Others may count their calls or keep a state, and a draft is not the text.
        """
        return _call(self._pure, self._padded(tokens), logits)[0].to(logits.device)

    def stop(self, answer: Sequence[int], above: int) -> int | None:
        """See `engine.StopRule`. What it keeps of `answer` is final."""
        tokens = (*self.prompt, *answer)
        end = self._end(tokens)
        self._final = self._padded(tokens[:end])[0]
        self._num_final = len(tokens[:end])
        self._ends.clear()
        return None if end is None else end - len(self.prompt)

    def _end(self, tokens: Sequence[int]) -> int | None:
        """The length at which the criteria end `tokens`; each prefix is put to them once."""
        for length in range(self._num_final + 1, len(tokens) + 1):
            new = tuple(tokens[self._num_final : length])
            if new not in self._ends:
                self._ends[new] = self._is_last(tokens[:length])
            if self._ends[new]:
                return length
        return None

    def _is_last(self, tokens: Sequence[int]) -> bool:
        scores = None
        if self._scores is not None:
            scores = tuple(self._scores[n] for n in range(len(self.prompt), len(tokens)))
        return bool(self._criteria(self._padded(tokens), scores).all())

    def _padded(self, tokens: Sequence[int]) -> Tensor:
        """`tokens`, which begin with the final ones, as a batch of one row with its padding."""
        new = self._final.new_tensor(tokens[self._num_final :])
        return torch.cat([self._final, new])[None]


def _call(processors: LogitsProcessorList, ids: Tensor, logits: Tensor) -> Tensor:
    """Scores `[1, V]`. The processors may write into what they are given, so it is a copy."""
    scores = logits[None].to(ids.device, torch.float32, copy=True)
    processed: Tensor = processors(ids, scores)
    return processed


def processors_of_row(
    processors: LogitsProcessorList, row: int, num_rows: int, rows_per_prompt: int
) -> LogitsProcessorList:
    """The processors for one row of a batch, which they see as a batch of one.

    What the library's own processors know of each row is cut out for this row. Others are shared
    by the rows.

    Args:
        processors: those of the whole batch.
        row, num_rows: which row of how many.
        rows_per_prompt: `num_return_sequences`.

    Raises:
        InvalidInput: a processor that works on the whole batch alone.
    """
    if num_rows == 1:
        return processors
    place = row, row // rows_per_prompt
    return LogitsProcessorList(
        _OF_ROW[type(p)](p, *place) if type(p) in _OF_ROW else p for p in processors
    )


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
    }
)
"""Functions of the text and the logits alone. `prefix_allowed_tokens_fn` is the user's code."""
