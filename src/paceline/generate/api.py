"""The Python door: `load` a model, then `generate` or `stream`. Here the parts are put together."""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock
from time import perf_counter
from typing import Any, Literal, TypedDict, Unpack, overload
from weakref import WeakSet

import torch

from paceline.checks import require_int
from paceline.core.protocols import Controller, Drafter, Target, Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.engine.loop import Request, decode
from paceline.engine.request import length_limit, token_ids
from paceline.errors import InvalidInput, UnknownName
from paceline.generate import jobs
from paceline.generate import options as checked
from paceline.generate.jobs import Job
from paceline.generate.parts import (
    Foreign,
    check_processors,
    make_controller,
    make_drafter,
    make_verifier,
)
from paceline.generate.results import Chunk, Generation, Piece, promise_of
from paceline.generate.tokenizers import check_same_tokenizer, warn_of_vocabularies
from paceline.kernels.packing import Storage
from paceline.models import Progress, loading
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import Processor
from paceline.targets.cached import CachedTarget, Decoder
from paceline.targets.invariant import make_invariant
from paceline.text import (
    StopStrings,
    TextStream,
    encode_plain,
    encode_prompt,
    tokenizer_fingerprint,
)

__all__ = ["Chunk", "Generation", "LanguageModel", "Options", "Piece", "Prompt", "load"]

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""A text, chat messages (`role` and `content`), or token ids."""

DEFAULT_MAX_TOKENS = 256


class Options(TypedDict, total=False):
    """What `generate` and `stream` take, all by name.

    Attributes:
        drafter: a registered name, or a drafter; "model" where a draft model is given, else
            "ngram". Several names, in a list or as in "ngram,model", take turns.
        drafter_options: settings of a drafter given by name.
        draft_model: for drafters that need one: a loaded model, or the name or path of one, which
            is loaded as it is, once. A draft may be coarse, so a cheaper one is to be had by
            `load(name, storage="int4", head_tokens=48000)`.
        controller: a registered name, or a controller: how far to draft. Where left out "auto",
            which drafts as far as it pays, or with a number of draft tokens "fixed".
        controller_options: settings of a controller given by name.
        num_draft_tokens: the most tokens that are drafted a round; "auto" leaves it to the
            controller, as does None.
        verify: a registered rule, or a rule. Where left out the one that suits the drafter:
            "token", or for a drafter of trees the one that it names. Where draft lengths follow
            the clock, as with "auto", and a seed is given to sample with, it is "coupling", so
            that the same seed gives the same text.
        verify_options: settings of a rule given by name.
        max_tokens: the longest answer; 256 where left out, None goes on to the context's end.
        min_tokens: before this length the answer cannot end.
        stop: a text, or several, that end the answer and are not part of it; None is none.
        stop_token_ids: tokens that end the answer, besides the model's own.
        ignore_eos: go on when the model says that the answer ends.
        logprobs: report log-probabilities, and those of this many of the most probable tokens.
        processors: functions from token ids so far and logits to logits.
        draft_processors: those of them that may run on draft logits too, having no state.
        seed: the same seed, prompt and options give the same answer; None takes a fresh one. (Not
            where you name a rule that does not couple beside draft lengths that follow the clock.)
        temperature and the rest: see `sampling.SamplingParams`.
    """

    drafter: str | Sequence[str] | Drafter | None
    drafter_options: Mapping[str, Any] | None
    draft_model: LanguageModel | str | Path | None
    controller: str | Controller | None
    controller_options: Mapping[str, Any] | None
    num_draft_tokens: int | Literal["auto"] | None
    verify: str | Verifier | None
    verify_options: Mapping[str, Any] | None
    max_tokens: int | None
    min_tokens: int
    stop: str | Sequence[str] | None
    stop_token_ids: Iterable[int] | None
    ignore_eos: bool
    logprobs: int | None
    processors: Sequence[Processor]
    draft_processors: Sequence[Processor]
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    logit_bias: Mapping[int, float]
    allowed_token_ids: Iterable[int] | None
    banned_token_ids: Iterable[int]
    seed: int | None


_SAMPLING = SamplingParams.__dataclass_fields__.keys()


def load(
    source: str | Path | Any,
    tokenizer: Any = None,
    *,
    dtype: str | torch.dtype = "auto",
    storage: Storage = "auto",
    head_tokens: int | Iterable[int] | None = None,
    invariant: bool = False,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> LanguageModel:
    """Load a model to decode with, or to draft with.

    Args:
        source: a known name (`paceline models` lists them), a folder in Hugging Face layout, a
            GGUF file, a hub name, or a model of `transformers` that you hold.
        tokenizer: its tokenizer; needed for text with a model that you hold.
        dtype: "auto", "float32" or "bfloat16". "auto" is the dtype of the files, and for GGUF
            files bfloat16 where the processor multiplies it.
        storage: how weights are kept: "auto" packs them for the CPU where that is faster, "plain"
            does not; "int8" and "int4" are for draft models, which may be as coarse as they like.
        head_tokens: cut the output head to this many of the most frequent tokens, or to these
            ids, and those of the text so far; for draft models alone, since a target could say
            little else.
        invariant: decode in passes of one fixed shape, so that the tokens are the same, to the
            bit, whatever is drafted.
        trust_remote_code: run the Python code that comes with the model.
        allow_pickle: unpickle weights where there are no safetensors. That runs any code in them.
        progress: called with (done, total, text) during slow steps.

    Raises:
        PacelineError: the message says what was expected, what came and what to do.

    Example:
        >>> model = load("smollm2-135m")  # doctest: +SKIP
        >>> model.generate("The capital of France is", max_tokens=8).text  # doctest: +SKIP
    """
    start = perf_counter()
    if isinstance(source, (str, Path)):
        if tokenizer is not None:
            raise InvalidInput("a model given by name brings its own tokenizer; leave it out")
        loaded = loading.load_files(
            source,
            dtype=dtype,
            storage=storage,
            head_tokens=head_tokens,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            progress=progress,
        )
    else:
        if head_tokens is not None or dtype != "auto":
            raise InvalidInput("dtype and head_tokens are for models that Paceline loads itself")
        loaded = loading.load_object(source, tokenizer, storage)
    target = make_invariant(loaded.decoder) if invariant else CachedTarget(loaded.decoder)
    return LanguageModel(
        target,
        loaded.decoder,
        loaded.tokenizer,
        loaded.eos_token_ids,
        perf_counter() - start,
    )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class LanguageModel:
    """A loaded model. Several threads may use one. Make it with `load`."""

    target: Target
    decoder: Decoder
    tokenizer: Any
    eos_token_ids: frozenset[int]
    load_seconds: float = 0.0
    _drafts: dict[str, LanguageModel] = field(default_factory=dict, repr=False)
    _checked: WeakSet[LanguageModel] = field(default_factory=WeakSet, repr=False)
    _lock: Lock = field(default_factory=Lock, repr=False)

    @property
    def name(self) -> str:
        """For messages and reports."""
        return self.target.info.name

    @overload
    def generate(
        self, prompt: Prompt, *, n: None = None, **options: Unpack[Options]
    ) -> Generation: ...
    @overload
    def generate(
        self, prompt: Prompt, *, n: int, **options: Unpack[Options]
    ) -> list[Generation]: ...
    def generate(
        self, prompt: Prompt, *, n: int | None = None, **options: Unpack[Options]
    ) -> Generation | list[Generation]:
        """Answer a prompt.

        Args:
            prompt: a text, chat messages, or token ids.
            n: this many independent samples, as a list; None is one answer. The i-th of them is
                what `seed + i` gives alone.
            options: see `Options`.

        Raises:
            InvalidInput: an option or prompt that cannot be used.
        """
        if n is None:
            return self._run(self._jobs([prompt], options))[0]
        prompts = [prompt] * require_int("n", n, low=1)
        return self._run(self._jobs(prompts, options, samples=True))

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Generation]:
        """Answer several prompts together, one target pass a round for all of them.

        Each gets what it would get alone, with the same seed.
        """
        if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Sequence):
            raise InvalidInput(
                f"generate_batch takes a list of prompts; for one prompt use generate. It was "
                f"given {prompts!r:.80}"
            )
        return self._run(self._jobs(prompts, options))

    def prepare(self, prompts: Sequence[Prompt], **options: Unpack[Options]) -> list[Job]:
        """What `generate_batch` would ask of the engine; runs nothing.

        For tools that look inside a run: each job has its `request` and the `verifier`.
        """
        return self._jobs(prompts, options)

    def _run(self, batch: Sequence[Job]) -> list[Generation]:
        events = decode(self.target, batch[0].verifier, [job.request for job in batch])
        return jobs.finish(events, batch, self.load_seconds)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Generator[Chunk | Generation]:
        """Answer a prompt piece by piece: `Chunk`s as they come, then the `Generation`.

        Characters are never split, and nothing that may yet turn out to be a stop string is
        shown. Closing the iterator stops the generation. Options and prompts that cannot be
        used raise here, before the first piece is asked for.
        """
        (job,) = self._jobs([prompt], options)
        events = decode(self.target, job.verifier, [job.request])
        return jobs.stream(events, job, self.load_seconds)

    def drafter(self, **options: Unpack[Options]) -> Drafter:
        """The drafter that these options stand for, as `generate` makes it.

        A draft model given by name is loaded, once.
        """
        return self._drafter(options)

    def encode(self, prompt: Prompt) -> list[int]:
        """The token ids of a prompt: chat messages through the model's template."""
        if isinstance(prompt, str):
            return encode_prompt(self._needed_tokenizer("a text prompt"), prompt)
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise InvalidInput(
                f"a prompt is a text, chat messages or token ids; it is {prompt!r:.80}"
            )
        parts = list(prompt)
        if isinstance(prompt, Mapping) or any(isinstance(part, Mapping) for part in parts):
            return encode_prompt(self._needed_tokenizer("a chat prompt"), prompt)  # type: ignore[arg-type]
        if any(isinstance(part, str) for part in parts):
            raise InvalidInput(
                "a prompt is a text, chat messages or token ids; this is a list of texts: answer "
                "several prompts with generate_batch"
            )
        return token_ids(parts)  # type: ignore[arg-type]

    def _jobs(
        self, prompts: Sequence[Prompt], options: Options, *, samples: bool = False
    ) -> list[Job]:
        """Turn options into requests; everything that can be wrong with them is found here.

        Every prompt gets the seed of the options, or a fresh one; `samples` of one prompt get one
        after the other.
        """
        for name in options:
            if name not in Options.__annotations__:
                raise UnknownName.among("option", name, Options.__annotations__)
        if not prompts:
            raise InvalidInput("there is no prompt; give at least one")
        sampling = {name: options[name] for name in _SAMPLING if name in options}  # type: ignore[literal-required]
        params = SamplingParams(**sampling)
        stops = checked.stop_strings(options.get("stop"))
        stop_tokenizer = self._needed_tokenizer("stop strings") if stops else None
        ends = checked.stop_token_ids(options.get("stop_token_ids"), self.target.info)
        if not checked.flag("ignore_eos", options.get("ignore_eos", False)):
            ends |= self.eos_token_ids
        drafter = self._drafter(options)
        controller = make_controller(
            options.get("controller"),
            options.get("num_draft_tokens"),
            options.get("controller_options"),
            drafter=drafter,
            target=self.target.info,
        )
        verifier = make_verifier(
            options.get("verify"),
            drafter,
            options.get("verify_options"),
            controller=controller,
            repeatable=params.seed is not None and not params.is_greedy,
        )
        processors, draft_processors = (
            checked.functions(name, options.get(name, ()))
            for name in ("processors", "draft_processors")
        )
        check_processors(verifier, processors, draft_processors)
        common: dict[str, Any] = {
            "drafter": drafter,
            "controller": controller,
            "params": params,
            "max_tokens": options.get("max_tokens", DEFAULT_MAX_TOKENS),
            "min_tokens": options.get("min_tokens", 0),
            "stop_token_ids": ends,
            "processors": processors,
            "draft_processors": draft_processors,
            "logprobs": options.get("logprobs"),
        }
        promise = promise_of(verifier, params, self.target.info)
        first_seed = _seed(params)
        batch = []
        for number, prompt in enumerate(prompts):
            seed = (first_seed + number) % 2**64 if samples else _seed(params)
            request = Request(
                prompt=self.encode(prompt),
                noise=SeededNoise(seed),
                stop_rules=[StopStrings(stop_tokenizer, stops)] if stops else [],
                **common,
            )
            length_limit(request, request.prompt, self.target.info)
            text = None
            if self.tokenizer is not None:
                text = TextStream(self.tokenizer, stops, request.min_tokens)
            batch.append(Job(request, verifier, promise, seed, text))
        return batch

    def _drafter(self, options: Options) -> Drafter:
        return make_drafter(
            options.get("drafter"),
            options.get("drafter_options"),
            options.get("draft_model"),
            as_target=self._draft_target,
            as_foreign=self._foreign,
            encode=lambda text: encode_plain(self._needed_tokenizer("a text to draft from"), text),
            fingerprint=self._fingerprint,
        )

    def _fingerprint(self) -> str | None:
        return None if self.tokenizer is None else tokenizer_fingerprint(self.tokenizer)

    def _draft_target(self, source: Any) -> Target:
        """The target of a draft model: loaded, and compared with this one, once."""
        if isinstance(getattr(source, "info", None), TargetInfo):
            warn_of_vocabularies(self.target.info, source.info)
            target: Target = source
            return target
        with self._lock:  # a second thread waits for the model rather than load it too
            draft = self._draft(source)
            if draft not in self._checked:
                self._compare(draft)
                self._checked.add(draft)
        return draft.target

    def _foreign(self, source: Any) -> Foreign:
        """A draft model of any tokenizer, with both tokenizers."""
        if isinstance(getattr(source, "info", None), TargetInfo):
            return Foreign(source, self.tokenizer, None)
        with self._lock:
            draft = self._draft(source)
        return Foreign(draft.target, self.tokenizer, draft.tokenizer)

    def _draft(self, source: Any) -> LanguageModel:
        """A draft model as it was given, loaded once."""
        if isinstance(source, LanguageModel):
            return source
        if not isinstance(source, (str, Path)):
            raise InvalidInput(
                f"draft_model must be a name, a path or a loaded model; it is a "
                f"{type(source).__name__}: load it first, with paceline.load(model, tokenizer)"
            )
        if str(source) not in self._drafts:
            self._drafts[str(source)] = load(source)
        return self._drafts[str(source)]

    def _compare(self, draft: LanguageModel) -> None:
        if self.tokenizer is None or draft.tokenizer is None:
            warn_of_vocabularies(self.target.info, draft.target.info)
        else:
            check_same_tokenizer(
                self.tokenizer, draft.tokenizer, target=self.name, draft=draft.name
            )

    def _needed_tokenizer(self, purpose: str) -> Any:
        if self.tokenizer is None:
            raise InvalidInput(
                f"{purpose} needs a tokenizer, and {self.name} was loaded without one; pass it to "
                "load, or give token ids"
            )
        return self.tokenizer


def _seed(params: SamplingParams) -> int:
    """The seed that was asked for, or a fresh one."""
    return secrets.randbits(63) if params.seed is None else params.seed
