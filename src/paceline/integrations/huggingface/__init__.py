"""The Hugging Face interface: `model.generate(..., custom_generate=paceline.speculate(...))`."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

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

from paceline.checks import require_int
from paceline.core.events import Event
from paceline.core.protocols import Controller, Drafter, Target, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.core.traits import traits_of
from paceline.drafting.heads.contract import Head
from paceline.engine.loop import Request, decode
from paceline.engine.metrics import Metrics
from paceline.errors import InvalidInput
from paceline.generate.api import load_draft
from paceline.generate.choice import Choice, choose
from paceline.generate.draft_heads import DraftHeads, as_chain, describe_heads
from paceline.generate.draft_models import DraftModels, OpenDraft, opened
from paceline.generate.drafts import HeadTokens, default_choice, describe
from paceline.generate.option_table import texts
from paceline.generate.parts import (
    check_processors,
    make_controller,
    make_drafter,
    make_verifier,
    named_rule,
)
from paceline.generate.results import promise_of
from paceline.generate.rules import check_rule
from paceline.generate.settings import with_settings
from paceline.generate.tokenizers import warn_of_vocabularies
from paceline.integrations.huggingface.answers import Answers
from paceline.integrations.huggingface.caches import extend, open_slot, visible_cache
from paceline.integrations.huggingface.processors import processors_of_row, pure_ones, split_warpers
from paceline.integrations.huggingface.refusals import (
    arguments_of_generate,
    pad_token,
    real_columns,
    refuse_changed_inputs,
    refuse_dropped,
    refuse_unsupported,
)
from paceline.integrations.huggingface.rows import Row
from paceline.kernels.packing import Storage
from paceline.models.loading import head_ids
from paceline.sampling.noise import SeededNoise
from paceline.targets.cached import PREFILL_ROWS, CachedTarget
from paceline.targets.hf.choice import decoder_of

log = logging.getLogger("paceline")


@dataclass
class SpeculativeOutput(GenerateDecoderOnlyOutput):
    """The output of `generate` with `return_dict_in_generate=True`, plus speculation metrics.

    If a row of a batch has ended before others, its `scores` and `logits` make the padding token
    certain.

    Args:
        spec: the drafter, the rule and what it promises, as in `results.Generation.spec`, and
            acceptance over all rows of the call, in the field names of vLLM. Rates are None where
            nothing was drafted.
    """

    spec: dict[str, Any] | None = None


def speculate(
    drafter: str | Sequence[str] | Drafter | None = None,
    *,
    num_draft_tokens: int | Literal["auto"] | None = None,
    controller: str | Controller | None = None,
    controller_options: Mapping[str, Any] | None = None,
    draft_model: PreTrainedModel | Target | str | Path | Any = None,
    draft_head: Head | str | Path | None = None,
    draft_storage: Storage | None = None,
    draft_head_tokens: HeadTokens = None,
    settings: str | Path | Mapping[str, Any] | None = None,
    verify: str | Verifier | None = None,
    verify_options: Mapping[str, Any] | None = None,
    tokenizer: Any = None,
    stop_strings: str | Sequence[str] | None = None,
    streamer: BaseStreamer | None = None,
    seed: int | None = None,
    on_event: Callable[[Event], None] | None = None,
    **options: Any,
) -> Speculation:
    """Make a `custom_generate` for `model.generate` that decodes speculatively.

    The generation config, logits processors and stopping criteria of the call are honoured, and
    the result is what `generate` returns: with greedy decoding the same tokens, with sampling
    tokens from the same distribution. What cannot be honoured raises. Nothing is kept between
    calls, so one object serves any number of them.

    Args:
        drafter: a registered name, or a drafter. By default "ngram", or with a draft model the tree
            of one path with leaves where draft lengths are left to "auto" and models and rule take
            trees, else "model". Several names, in a list or as in "ngram,model", take turns.
        num_draft_tokens: the most tokens that are drafted a round; None or "auto" leaves it to
            the controller.
        controller: a registered name, or a controller: how far to draft. By default "auto", which
            drafts as far as it pays, or with a number of draft tokens "fixed".
        controller_options: settings of a controller given by name.
        draft_model: for drafters that need one: a model of `transformers`, one from
            `paceline.load`, or the name or path of one, which each call of `speculate` loads again,
            onto the CPU, in the cheapest form that pays there; with the tokenizer of the target.
            For the drafter "universal" it may have another: of a model of `transformers` give that
            as the option `draft_tokenizer`.
        draft_head: a head that was trained for the target: its path or hub name, or one from
            `paceline.load_head`, which has to be on the target's device. Its kind is found out, and
            drafts as a tree if the target and the rule take trees.
        draft_storage, draft_head_tokens: how a draft model given by name or path is loaded instead;
            see `paceline.generate.api.load_draft`.
        settings: a file that `paceline recommend` wrote, or its contents: how to draft, instead of
            the individual options.
        verify: a registered rule, or a rule; None means the one that suits the drafter. If draft
            lengths depend on timings, as with "auto", and the call samples, it is "coupling", so
            that the same seed gives the same text.
        verify_options: settings of a rule given by name.
        tokenizer: the target's, for `stop_strings`, for "universal", for references that are text,
            and to compare with that of a draft model from `paceline.load`.
        stop_strings: as for `generate`; you may pass them there instead.
        streamer: as for `generate`; you may pass it there instead.
        seed: the same seed gives the same samples. None takes one from torch's generator, so that
            `torch.manual_seed` and `transformers.set_seed` work as usual.
        on_event: called with each event of the engine (`paceline.core.events`).
        options: settings of a drafter given by name, such as `max_ngram`.

    Raises:
        InvalidInput: an option is invalid.

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
    if seed is not None:
        require_int("seed", seed, low=0, high=2**64 - 1)
    _require(tokenizer, "tokenizer", "a tokenizer of transformers", "encode", "get_vocab")
    _require(streamer, "streamer", "a streamer of transformers", "put", "end")
    _require(on_event, "on_event", "a function", "__call__")
    if settings is not None:
        found = with_settings(
            {
                "settings": settings,
                "drafter": drafter,
                "drafter_options": options,
                "num_draft_tokens": num_draft_tokens,
                "controller": controller,
                "controller_options": controller_options,
                "verify": verify,
                "verify_options": verify_options,
                "draft_model": draft_model,
                "draft_head": draft_head,
                "draft_storage": draft_storage,
                "draft_head_tokens": draft_head_tokens,
            }
        )
        return speculate(
            tokenizer=tokenizer,
            stop_strings=stop_strings,
            streamer=streamer,
            seed=seed,
            on_event=on_event,
            **found.pop("drafter_options", {}),
            **found,
        )
    # Errors here are reported before a draft model is loaded, which takes seconds.
    rule = named_rule(verify, verify_options)
    make_controller(controller, num_draft_tokens, controller_options)
    strings = _stop_strings(stop_strings, tokenizer)
    choice = choose(drafter, options, draft_model, draft_head)
    drafts: dict[int, OpenDraft] = {}
    heads, told = DraftHeads(None, token_ids=lambda n, size: head_ids(n, size, tokenizer, ())), None
    if isinstance(choice, Choice):
        is_of_model = choice.has_draft_model or not choice.has_head
        form, nothing = (draft_storage, draft_head_tokens), (None, None)
        choice = heads.open(choice, *(nothing if is_of_model else form), rule=rule)
        models = DraftModels(None, tokenizer, load_draft)
        drafts = models.open(choice, *(form if is_of_model else nothing))
        told = describe_heads(choice)
    draft = next(iter(drafts.values()), None)
    chain = as_chain(choice) if isinstance(choice, Choice) else choice
    if isinstance(choice, Choice) and draft is not None:
        if drafter is None:
            choice = default_choice(
                choice,
                controller=controller,
                num_draft_tokens=num_draft_tokens,
                rule=rule,
                target=None,
                draft=draft.target.info,
            )
        told = describe(draft.form, choice)
        log.info("draft model %s: %s", draft.target.info.name, told)
    made = make_drafter(choice, drafts, tokenizer)
    control = make_controller(controller, num_draft_tokens, controller_options, drafter=made)
    return Speculation(
        verifier=make_verifier(rule, made),
        sampling_verifier=make_verifier(rule, made, controller=control, repeatable=True),
        controller=control,
        drafter=made,
        chain_drafter=make_drafter(chain, drafts, tokenizer),
        draft_model=None if draft is None else draft.source,
        draft_storage=draft_storage,
        draft_head_tokens=draft_head_tokens,
        heads=heads,
        draft=told,
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
    chain_drafter: Drafter
    draft_model: Any
    draft_storage: Storage | None
    draft_head_tokens: HeadTokens
    heads: DraftHeads
    draft: str | None
    controller: Controller
    verifier: Verifier
    sampling_verifier: Verifier
    tokenizer: Any
    stop_strings: tuple[str, ...]
    streamer: BaseStreamer | None
    seed: int | None
    on_event: Callable[[Event], None] | None
    _warned: set[tuple[str, str]] = field(default_factory=set, repr=False)
    _heads_of: dict[tuple[str, str], DraftHeads] = field(default_factory=dict, repr=False)

    def __call__(
        self,
        model: PreTrainedModel,
        input_ids: Tensor,
        logits_processor: LogitsProcessorList,
        stopping_criteria: StoppingCriteriaList,
        generation_config: GenerationConfig,
        synced_gpus: bool = False,
        streamer: BaseStreamer | None = None,
        stop_strings: str | Sequence[str] | None = None,
        **model_kwargs: Any,
    ) -> SpeculativeOutput | Tensor:
        """Decode; `generate` calls this instead of its own loop.

        Args:
            model: the target.
            input_ids: the prompts `[B, n]`, padded on the left.
            logits_processor, stopping_criteria, generation_config: as `generate` prepared them.
            synced_gpus, streamer: as for `generate`'s own loop.
            stop_strings: those given to `generate`, which passes them on because they are named
                here; in addition to those of `speculate`.
            model_kwargs: the arguments for the model: attention mask, positions, cache.

        Returns:
            The sequences `[B, n + longest answer]`, or a `SpeculativeOutput`.

        Raises:
            InvalidInput: the call asks for something that speculation cannot honour.
            UnsupportedModel: the model cannot be decoded exactly.
        """
        given = arguments_of_generate(inspect.currentframe())
        refuse_dropped(given)
        config, num_rows = generation_config, len(input_ids)
        decoder = decoder_of(model)
        refuse_unsupported(config, model_kwargs, synced_gpus=synced_gpus)
        refuse_changed_inputs(model, input_ids, model_kwargs.get("attention_mask"))
        columns = real_columns(
            input_ids,
            model_kwargs.get("attention_mask"),
            model_kwargs.get("position_ids"),
            getattr(config, "_mask_length", None),
        )
        pad, cache = pad_token(config, num_rows), visible_cache(config, model_kwargs, num_rows)
        criteria = StoppingCriteriaList(stopping_criteria)
        if strings := (*self.stop_strings, *_stop_strings(stop_strings, self.tokenizer)):
            criteria.append(StopStringCriteria(self.tokenizer, list(strings)))
        processors, params = logits_processor, SamplingParams()
        if config.do_sample:
            processors, params = split_warpers(processors)
        check_processors(self.verifier, processors, pure_ones(processors))
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
                number=number,
                num_rows=num_rows,
                keep_scores=keep_scores,
            )
            for number, of_row in enumerate(columns)
        ]
        # As in `generate`, the first token is emitted whatever the criteria say.
        longest = criteria.max_length
        max_tokens = None if longest is None else max(1, longest - input_ids.shape[1])
        prefill_rows = config.prefill_chunk_size or PREFILL_ROWS
        target = CachedTarget(decoder, prefill_rows=prefill_rows)
        seed, drafter = self._seed(params), self._drafter_of_now(target.info, decoder.device)
        verifier = self.verifier if params.is_greedy else self.sampling_verifier
        check_rule(verifier, drafter, params)
        if (theirs := given.get("streamer")) is not None and self.streamer is not None:
            raise InvalidInput("a streamer is given to generate and to speculate; leave one out")
        if streamer is None:
            streamer = theirs  # `generate` has put the prompt already
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
                    verifier=verifier,
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
            for event in stack.enter_context(
                closing(decode(target, requests, prefill_rows=prefill_rows))
            ):
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
            spec={
                "drafter": drafter.name,
                "verifier": verifier.name,
                "exact": verifier.exact,
                "promise": promise_of(verifier, params, target.info),
                "draft": self.draft,
                **metrics.spec(),
            },
        )

    def _drafter_of_now(self, target: TargetInfo, device: torch.device) -> Drafter:
        """The drafter with the draft model in its current state (adapters, device)."""
        found = self._with_model_of_now(self.drafter, target, device)
        if not target.lacks(found.needs):
            return found
        # A default tree is replaced by a chain if the target takes no trees.
        return self._with_model_of_now(self.chain_drafter, target, device)

    def _with_model_of_now(self, drafter: Any, target: TargetInfo, device: torch.device) -> Drafter:
        traits = traits_of(drafter)
        if traits.combines:
            parts = tuple(
                self._with_model_of_now(part, target, device) for part in drafter.drafters
            )
            drafter = replace(drafter, drafters=parts)
        elif traits.needs_draft_head:  # it is `head`, see `core.traits`
            place = target.name, str(device)
            if place not in self._heads_of:
                self._heads_of[place] = self.heads.beside(target, device)
            drafter = replace(drafter, head=self._heads_of[place].same(drafter.head, self.heads))
        elif traits.needs_draft_model:  # it is `model`, see `core.traits`
            if isinstance(self.draft_model, nn.Module):
                draft = opened(self.draft_model, self.draft_storage, self.draft_head_tokens)
                drafter = replace(drafter, model=draft.target)
            known = None not in (self.tokenizer, getattr(self.draft_model, "tokenizer", None))
            pair = target.name, drafter.model.info.name
            if not known and not traits.translates and pair not in self._warned:
                self._warned.add(pair)
                warn_of_vocabularies(target, drafter.model.info)
        made: Drafter = drafter
        return made

    def _seed(self, params: SamplingParams) -> int:
        if params.is_greedy:
            return 0  # nothing is drawn, and torch's generator stays as it is
        if self.seed is not None:
            return self.seed
        return int(torch.randint(2**63 - 1, ()))


def _stop_strings(given: Any, tokenizer: Any) -> tuple[str, ...]:
    strings = tuple(() if given is None else texts("stop_strings", given))
    if strings and tokenizer is None:
        raise InvalidInput(
            "stop_strings needs the tokenizer, and generate does not pass its own to a "
            "custom_generate; pass it to speculate(tokenizer=...)"
        )
    return strings


def _require(given: Any, option: str, what: str, *members: str) -> None:
    """Refuse an option that is of no use, unless it was left out."""
    if given is not None and not all(hasattr(given, member) for member in members):
        raise InvalidInput(f"{option} must be {what}; it is {given!r:.80}")


__all__ = ["Speculation", "SpeculativeOutput", "speculate"]
