"""One row of a batch, as the logits processors and stopping criteria of transformers see it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessorList, StoppingCriteriaList

from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput
from paceline.integrations.huggingface.processors import pure_ones
from paceline.sampling.warp import truncate


class Row:
    """A row's own sequence, without padding for the engine and with it for transformers.

    `process`, `guide` and `stop` are the engine's processor, draft processor and stop rule. Under a
    rule that walks (see `sampling.warp.SamplingWarp`) they call in the order of `generate`: for
    each token the processors once, and then the stopping criteria once. No processor is called
    after the end of the answer.

    Args:
        ids: the padded prompt `[n]`, where the processors want their tensors.
        columns: where its tokens are; the others are padding.
        processors: the row's own, see `processors_of_row`.
        params: what is left of them to the engine, see `split_warpers`.
        criteria: what ends the row.
        number, num_rows: which row of how many.
        keep_scores: pass the processed scores to the criteria, as `generate` does if they are
            requested.
    """

    def __init__(
        self,
        ids: Tensor,
        columns: Tensor,
        processors: LogitsProcessorList,
        params: SamplingParams,
        criteria: StoppingCriteriaList,
        *,
        number: int = 0,
        num_rows: int = 1,
        keep_scores: bool = False,
    ) -> None:
        self._place = number, num_rows
        self.columns: list[int] = columns.tolist()
        self.prompt: list[int] = ids[columns].tolist()
        self._processors, self._params, self._criteria = processors, params, criteria
        self._pure = pure_ones(processors)
        self._final, self._num_final = ids, len(self.prompt)
        self._ends: dict[tuple[int, ...], bool] = {}
        self._scores: dict[int, Tensor] | None = {} if keep_scores else None

    def process(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        """The scores after `tokens` to which the engine's options apply, float32."""
        if self._end(tokens) is not None:
            return logits  # for a token after the end, which will not be emitted
        scores = _call(self._processors, self._padded(tokens), logits, self._place)
        if self._scores is not None:
            done = scores if self._params.is_greedy else truncate(scores, self._params)
            self._scores[len(tokens)] = done
        return scores[0].to(logits.device)

    def guide(self, tokens: Sequence[int], logits: Tensor) -> Tensor:
        """The same for draft logits, only by the processors that are functions of the text.

        Others may count their calls or keep state, and a draft is not the text.
        """
        scores = _call(self._pure, self._padded(tokens), logits, self._place)
        return scores[0].to(logits.device)

    def stop(self, answer: Sequence[int], above: int) -> int | None:
        """See `engine.StopRule`. The part of `answer` that it keeps is final."""
        tokens = (*self.prompt, *answer)
        end = self._end(tokens)
        self._final = self._padded(tokens[:end])[0]
        self._num_final = len(tokens[:end])
        self._ends.clear()
        return None if end is None else end - len(self.prompt)

    def _end(self, tokens: Sequence[int]) -> int | None:
        """The length at which the criteria end `tokens`; each prefix is checked once."""
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


def _call(
    processors: LogitsProcessorList, ids: Tensor, logits: Tensor, place: tuple[int, int]
) -> Tensor:
    """Scores `[1, V]`. The processors may write into `logits`, which are the warp's copy.

    One that knows its batch, and adds something of shape `[B, V]`, gives a row for every row of the
    batch: the one at `place` is used.

    Raises:
        InvalidInput: a processor returns something else.
    """
    scores = logits[None].to(ids.device, torch.float32)
    number, num_rows = place
    for processor in processors:
        processed: Any = LogitsProcessorList([processor])(ids, scores)
        shape = tuple(processed.shape) if isinstance(processed, Tensor) else None
        if shape not in ((1, scores.shape[1]), (num_rows, scores.shape[1])):
            came = f"a {type(processed).__name__}" if shape is None else f"{list(shape)}"
            raise InvalidInput(
                f"the logits processor {processor!r:.80} returned {came}; it was called for one "
                f"row and must return scores of shape [1, {scores.shape[1]}]"
            )
        scores = processed if len(processed) == 1 else processed[number : number + 1]
    return scores
