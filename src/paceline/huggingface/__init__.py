"""The Hugging Face door: `model.generate(..., custom_generate=paceline.speculate(...))`."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    LogitsProcessorList,
    PreTrainedModel,
    StoppingCriteriaList,
    StopStringCriteria,
)
from transformers.generation import GenerateDecoderOnlyOutput
from transformers.generation.streamers import BaseStreamer

from paceline import registry
from paceline.controllers.fixed import FixedController
from paceline.engine import Request, decode
from paceline.errors import InvalidInput
from paceline.events import Event
from paceline.huggingface.answers import Answers
from paceline.huggingface.caches import extend, open_slot, visible_cache
from paceline.huggingface.processors import processors_of_row, split_warpers
from paceline.huggingface.refusals import (
    pad_token,
    real_columns,
    refuse_dropped,
    refuse_unsupported,
)
from paceline.huggingface.rows import Row
from paceline.math.noise import SeededNoise
from paceline.metrics import Metrics
from paceline.protocols import Drafter, Target, Verifier
from paceline.targets.cached import PREFILL_ROWS, CachedTarget
from paceline.targets.hf import HFDecoder
from paceline.types import SamplingParams, TargetInfo, require_int


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """What `generate` returns with `return_dict_in_generate=True`, and what speculation did.

    Where a row of a batch has ended before others, `scores` and `logits` say that the padding
    token is certain.

    Args:
        spec: the drafter, whether the rule is exact, and acceptance over all rows of the call, in
            the field names of vLLM. Rates are None where nothing was drafted.
    """

    spec: dict[str, Any] | None = None


def speculate(
    drafter: str | Drafter | None = None,
    *,
    num_draft_tokens: int = 5,
    draft_model: PreTrainedModel | Target | Any = None,
    verify: str | Verifier = "token",
    tokenizer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    streamer: BaseStreamer | None = None,
    seed: int | None = None,
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Speculation:
    """Make a `custom_generate` for `model.generate` that decodes speculatively.

    The generation config, logits processors and stopping criteria of the call are honoured, and
    the result is what `generate` returns: greedily the same tokens, in sampling tokens of the same
    law. What cannot be honoured raises. Nothing is kept between calls, so one object serves any
    number of them.

    Args:
        drafter: a registered name, or a drafter; by default "model" where a draft model is given,
            else "ngram".
        num_draft_tokens: the most tokens that are drafted a round.
        draft_model: for drafter "model": a model of `transformers` or one from `paceline.load`,
            with the tokenizer of the target.
        verify: a registered rule, or a rule.
        tokenizer: for `stop_strings`, and for references that are text.
        stop_strings: as for `generate`, which does not take them with a `custom_generate`.
        streamer: as for `generate`, which does not hand its own to a `custom_generate`.
        seed: the same seed gives the same samples. None takes one from torch's generator, so that
            `torch.manual_seed` and `transformers.set_seed` work as usual.
        on_event: called with each event of the engine (`paceline.events`).
        options: settings of a drafter given by name, such as `max_ngram`.

    Raises:
        InvalidInput: an option that cannot be used.

    Example:
        >>> from transformers import LlamaConfig, LlamaForCausalLM
        >>> sizes = dict(vocab_size=64, hidden_size=16, intermediate_size=32)
        >>> config = LlamaConfig(**sizes, num_hidden_layers=1, num_attention_heads=2)
        >>> model = LlamaForCausalLM(config)
        >>> ids = torch.tensor([[3, 4, 5]])
        >>> plain = model.generate(ids, max_new_tokens=8)
        >>> fast = model.generate(ids, max_new_tokens=8, custom_generate=speculate())
        >>> torch.equal(plain, fast)
        True
    """
    verifier = registry.make("verifier", verify, {}) if isinstance(verify, str) else verify
    if seed is not None:
        require_int("seed", seed, low=0, high=2**64 - 1)
    strings = (stop_strings,) if isinstance(stop_strings, str) else tuple(stop_strings or ())
    if strings and tokenizer is None:
        raise InvalidInput("stop_strings needs the tokenizer; pass it to speculate as well")
    if "references" in options:
        options["references"] = _encoded(options["references"], tokenizer)
    return Speculation(
        drafter=_make_drafter(drafter, draft_model, options),
        draft_model=draft_model,
        controller=FixedController(num_draft_tokens),
        verifier=verifier,
        tokenizer=tokenizer,
        stop_strings=strings,
        streamer=streamer,
        seed=seed,
        on_event=on_event,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Speculation:
    """A `custom_generate` for `model.generate`. Make it with `speculate`."""

    drafter: Drafter
    draft_model: Any
    controller: FixedController
    verifier: Verifier
    tokenizer: Any
    stop_strings: tuple[str, ...]
    streamer: BaseStreamer | None
    seed: int | None
    on_event: Callable[[Event], None] | None

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        **model_kwargs: Any,
    ) -> SpeculativeOutput | Tensor:
        """Decode; `generate` calls this in place of its own loop.

        Args:
            model: the target.
            input_ids: the prompts `[B, n]`, padded on the left.
            logits_processor, stopping_criteria, generation_config: as `generate` prepared them.
            synced_gpus, streamer: as for `generate`'s own loop.
            model_kwargs: what goes to the model: attention mask, positions, cache.

        Returns:
            The sequences `[B, n + longest answer]`, or a `SpeculativeOutput`.

        Raises:
            InvalidInput: the call asks for something that speculation cannot honour.
            UnsupportedModel: the model cannot be decoded exactly.
        """
        refuse_dropped(inspect.currentframe())
        config, num_rows = generation_config, len(input_ids)
        decoder = HFDecoder(model)
        refuse_unsupported(config, model_kwargs, synced_gpus=synced_gpus)
        columns = real_columns(
            input_ids,
            model_kwargs.get("attention_mask"),
            model_kwargs.get("position_ids"),
            getattr(config, "_mask_length", None),
        )
        pad, cache = pad_token(config, num_rows), visible_cache(config, model_kwargs, num_rows)
        criteria = StoppingCriteriaList(stopping_criteria)
        if self.stop_strings:
            criteria.append(StopStringCriteria(self.tokenizer, list(self.stop_strings)))
        processors, params = logits_processor, SamplingParams()
        if config.do_sample:
            processors, params = split_warpers(processors)
        wants_dict = bool(config.return_dict_in_generate)
        keep_logits = wants_dict and bool(config.output_logits)
        keep_scores = wants_dict and bool(config.output_scores)
        rows = [
            Row(
                input_ids[number],
                of_row,
                processors_of_row(processors, number, num_rows, config.num_return_sequences or 1),
                params,
                criteria,
                keep_scores=keep_scores,
            )
            for number, of_row in enumerate(columns)
        ]
        # As in `generate`, the first token comes whatever the criteria say.
        longest = criteria.max_length
        max_tokens = None if longest is None else max(1, longest - input_ids.shape[1])
        seed, drafter = self._seed(params), self._drafter_of_now()
        target = CachedTarget(decoder, prefill_rows=config.prefill_chunk_size or PREFILL_ROWS)
        if streamer is None and self.streamer is not None:
            streamer = self.streamer
            streamer.put(input_ids.cpu())
        answers, metrics = Answers(input_ids, pad, streamer), Metrics()

        with ExitStack() as stack:
            requests = [
                Request(
                    prompt=row.prompt,
                    drafter=drafter,
                    controller=self.controller,
                    noise=SeededNoise(seed, number),
                    params=params,
                    max_tokens=max_tokens,
                    stop_rules=[row.stop],
                    processors=[row.process],
                    draft_processors=[row.guide],
                    keep_logits=keep_logits,
                    keep_scores=keep_scores,
                    slot=open_slot(target, cache, number, row, max_tokens, stack),
                )
                for number, row in enumerate(rows)
            ]
            for event in stack.enter_context(closing(decode(target, self.verifier, requests))):
                answers.take(event)
                metrics = metrics.add(event)
                if self.on_event is not None:
                    self.on_event(event)
            if cache is not None:
                slots = [request.slot for request in requests]
                if not extend(cache, target, slots, rows, answers.tokens):
                    cache = None
        if streamer is not None:
            streamer.end()
        answers.warn_of_context(decoder.info, max_tokens)
        if not wants_dict:
            return answers.sequences()
        return SpeculativeOutput(
            sequences=answers.sequences(),
            scores=answers.columns("scores") if keep_scores else None,
            logits=answers.columns("logits") if keep_logits else None,
            cache=cache,
            spec={"drafter": drafter.name, "exact": self.verifier.exact, **metrics.spec()},
        )

    def _drafter_of_now(self) -> Drafter:
        """The drafter with the draft model as it is: it may have got an adapter, say, or moved."""
        if not isinstance(self.draft_model, nn.Module):
            return self.drafter
        settings: Any = self.drafter  # a dataclass, as every registered drafter
        drafter: Drafter = replace(settings, model=_draft_target(self.draft_model))
        return drafter

    def _seed(self, params: SamplingParams) -> int:
        if params.is_greedy:
            return 0  # nothing is drawn, and torch's generator stays as it is
        if self.seed is not None:
            return self.seed
        return int(torch.randint(2**63 - 1, ()))


def _make_drafter(
    drafter: str | Drafter | None, draft_model: Any, settings: Mapping[str, Any]
) -> Drafter:
    if drafter is None:
        drafter = "ngram" if draft_model is None else "model"
    if not isinstance(drafter, str):
        if settings or draft_model is not None:
            raise InvalidInput(
                "draft_model and settings go with a drafter given by name; the drafter given has "
                "its settings already"
            )
        return drafter
    wants_model = "model" in getattr(registry.find("drafter", drafter), "__dataclass_fields__", {})
    if wants_model and draft_model is None:
        raise InvalidInput(f"drafter {drafter!r} needs a draft_model")
    if draft_model is not None:
        if not wants_model:
            raise InvalidInput(f"drafter {drafter!r} takes no draft_model; leave it out")
        settings = {**settings, "model": _draft_target(draft_model)}
    made: Drafter = registry.make("drafter", drafter, settings)
    return made


def _draft_target(draft_model: Any) -> Target:
    """The target behind what the user has: a model of transformers, a loaded one, a target."""
    if isinstance(draft_model, nn.Module):
        return CachedTarget(HFDecoder(draft_model))
    # What `paceline.load` returns holds its target.
    target: Target = getattr(draft_model, "target", draft_model)
    if not isinstance(getattr(target, "info", None), TargetInfo):
        raise InvalidInput(
            f"draft_model must be a model of transformers or one from paceline.load; it is "
            f"{draft_model!r:.80}"
        )
    return target


def _encoded(references: Any, tokenizer: Any) -> tuple[tuple[int, ...], ...]:
    """References as token ids; those that are text need the tokenizer."""
    references = [references] if isinstance(references, str) else references
    if tokenizer is None and any(isinstance(reference, str) for reference in references):
        raise InvalidInput("references that are text need the tokenizer; pass it as well")
    return tuple(
        tuple(
            tokenizer.encode(reference, add_special_tokens=False)
            if isinstance(reference, str)
            else reference
        )
        for reference in references
    )


__all__ = ["Speculation", "SpeculativeOutput", "speculate"]
