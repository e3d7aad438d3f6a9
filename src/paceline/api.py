"""The Python door: `load` a model, then `generate` or `stream`. Here the parts are put together."""

from __future__ import annotations

import operator
import secrets
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, TypedDict, Unpack, overload
from weakref import WeakSet

import torch

from paceline import loading, registry
from paceline.controllers.fixed import FixedController
from paceline.engine import Request, decode
from paceline.errors import InvalidInput, UnknownName
from paceline.events import Event, Finished, Prefilled, Round
from paceline.math.noise import SeededNoise
from paceline.math.warp import Processor
from paceline.metrics import Metrics
from paceline.models import Progress
from paceline.protocols import Drafter, Target, Verifier
from paceline.request import length_limit, token_ids
from paceline.targets.cached import CachedTarget, Decoder
from paceline.targets.invariant import make_invariant
from paceline.targets.packing import Storage
from paceline.text import StopStrings, TextStream, encode_prompt
from paceline.types import SamplingParams, require_int

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""A text, chat messages (`role` and `content`), or token ids."""

DEFAULT_MAX_TOKENS = 256


class Options(TypedDict, total=False):
    """What `generate` and `stream` take, all by name.

    Attributes:
        drafter: a registered name, or a drafter; "model" where a draft model is given, else
            "ngram".
        drafter_options: settings of a drafter given by name.
        draft_model: a loaded model, or what `load` takes; for drafters that need one.
        num_draft_tokens: the most tokens that are drafted a round. 5 where left out.
        verify: a registered rule, or a rule. "token" where left out.
        max_tokens: the longest answer; 256 where left out, None goes on to the context's end.
        min_tokens: before this length the answer cannot end.
        stop: a text, or several, that end the answer and are not part of it; None is none.
        stop_token_ids: tokens that end the answer, besides the model's own.
        ignore_eos: go on when the model says that the answer ends.
        logprobs: report log-probabilities, and those of this many of the most probable tokens.
        processors: functions from token ids so far and logits to logits.
        draft_processors: those of them that may run on draft logits too, having no state.
        seed: the same seed, prompt and options give the same answer; None takes a fresh one.
        temperature and the rest: see `types.SamplingParams`.
    """

    drafter: str | Drafter
    drafter_options: Mapping[str, Any]
    draft_model: LanguageModel | str | Path
    num_draft_tokens: int
    verify: str | Verifier
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


@dataclass(frozen=True, slots=True)
class Piece:
    """The text that one token brought, and whether the token was drafted and accepted.

    Text may be held back until it is known not to be part of a stop string or a broken character;
    it comes with a later token, or at the end in a piece that names the last token again.
    """

    text: str
    token_id: int
    drafted: bool


@dataclass(frozen=True, slots=True)
class Chunk:
    """What one round added to the text."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """The new text."""
        return "".join(piece.text for piece in self.pieces)


@dataclass(frozen=True, slots=True)
class Generation:
    """A finished answer.

    Args:
        text: without what ended it.
        token_ids: with the token that ended it.
        finish_reason: "stop" or "length".
        num_prompt_tokens: the length of the prompt.
        seed: gives the same answer again, alone or in company.
        drafter, exact: how it was drafted, and whether the rule is exact.
        metrics: what the rounds counted and took.
        decode_seconds: from the end of the prefill to the last token, without the time that the
            reader of a stream takes.
        load_seconds: what loading the model took, once.
        logprobs, top_logprobs: one a token, where they were asked for.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    num_prompt_tokens: int
    seed: int
    drafter: str
    exact: bool
    metrics: Metrics
    decode_seconds: float
    load_seconds: float = 0.0
    logprobs: tuple[float, ...] | None = None
    top_logprobs: tuple[tuple[tuple[int, float], ...], ...] | None = None

    @property
    def usage(self) -> dict[str, int]:
        """The tokens of prompt and answer, in the words of the OpenAI API."""
        return {
            "prompt_tokens": self.num_prompt_tokens,
            "completion_tokens": len(self.token_ids),
        }

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the answer a second of decoding, prefill aside; None without any."""
        return len(self.token_ids) / self.decode_seconds if self.token_ids else None

    @property
    def spec(self) -> dict[str, Any]:
        """What speculation did, in the field names of vLLM; rates are None without a draft."""
        return {"drafter": self.drafter, "exact": self.exact, **self.metrics.spec()}

    def to_json(self) -> dict[str, Any]:
        """Everything as plain JSON values."""
        metrics = self.metrics
        found: dict[str, Any] = {
            "text": self.text,
            "token_ids": list(self.token_ids),
            "finish_reason": self.finish_reason,
            "usage": self.usage,
            "seed": self.seed,
            "spec": self.spec,
            "time": {
                "load_s": self.load_seconds,
                "prefill_s": metrics.prefill_s,
                "decode_s": self.decode_seconds,
                "draft_s": metrics.draft_s,
                "target_s": metrics.target_s,
                "verify_s": metrics.verify_s,
            },
            "tokens_per_second": self.tokens_per_second,
        }
        if self.logprobs is not None:
            found["logprobs"] = list(self.logprobs)
            found["top_logprobs"] = [
                [list(pair) for pair in row] for row in self.top_logprobs or ()
            ]
        return found


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
            ids; for draft models.
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

    def _run(self, jobs: Sequence[_Job]) -> list[Generation]:
        for event in decode(self.target, jobs[0].verifier, [job.request for job in jobs]):
            jobs[event.index].take(event)
        return [job.generation(self.load_seconds) for job in jobs]

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Generator[Chunk | Generation]:
        """Answer a prompt piece by piece: `Chunk`s as they come, then the `Generation`.

        Characters are never split, and nothing that may yet turn out to be a stop string is
        shown. Closing the iterator stops the generation. Options and prompts that cannot be
        used raise here, before the first piece is asked for.
        """
        (job,) = self._jobs([prompt], options)
        events = decode(self.target, job.verifier, [job.request])
        return _stream(events, job, self.load_seconds)

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
    ) -> list[_Job]:
        """Turn options into requests; everything that can be wrong with them is found here.

        Every prompt gets the seed of the options, or a fresh one; `samples` of one prompt get one
        after the other.
        """
        for name in options:
            if name not in Options.__annotations__:
                raise UnknownName.among("option", name, Options.__annotations__)
        if not prompts:
            raise InvalidInput("there is no prompt; give at least one")
        verifier = options.get("verify", "token")
        if isinstance(verifier, str):
            verifier = registry.make("verifier", verifier, {})
        drafter = self._drafter(options)
        sampling = {name: options[name] for name in _SAMPLING if name in options}  # type: ignore[literal-required]
        params = SamplingParams(**sampling)
        stops = options.get("stop") or ()
        stops = [stops] if isinstance(stops, str) else list(stops)
        min_tokens = options.get("min_tokens", 0)
        ends = self._stop_token_ids(options)
        if not options.get("ignore_eos", False):
            ends |= self.eos_token_ids
        jobs = []
        first_seed = _seed(params)
        for number, prompt in enumerate(prompts):
            seed = (first_seed + number) % 2**64 if samples else _seed(params)
            rules = [StopStrings(self._needed_tokenizer("stop strings"), stops)] if stops else []
            request = Request(
                prompt=self.encode(prompt),
                drafter=drafter,
                controller=FixedController(options.get("num_draft_tokens", 5)),
                noise=SeededNoise(seed),
                params=params,
                max_tokens=options.get("max_tokens", DEFAULT_MAX_TOKENS),
                min_tokens=min_tokens,
                stop_token_ids=ends,
                stop_rules=rules,
                processors=options.get("processors", ()),
                draft_processors=options.get("draft_processors", ()),
                logprobs=options.get("logprobs"),
            )
            length_limit(request, request.prompt, self.target.info)
            text = None if self.tokenizer is None else TextStream(self.tokenizer, stops, min_tokens)
            jobs.append(_Job(request, verifier, seed, text))
        return jobs

    def _stop_token_ids(self, options: Options) -> frozenset[int]:
        """Those that the caller names; a model may name more than its vocabulary has."""
        given = options.get("stop_token_ids")
        vocab_size = self.target.info.vocab_size
        try:
            ids = frozenset(operator.index(token) for token in given or ())
        except TypeError:
            raise InvalidInput(f"stop_token_ids must be token ids; it is {given!r:.80}") from None
        if outside := [token for token in ids if not 0 <= token < vocab_size]:
            raise InvalidInput(
                f"stop_token_ids take ids from 0 to {vocab_size - 1}; got {outside[0]}"
            )
        return ids

    def _drafter(self, options: Options) -> Drafter:
        draft_model = options.get("draft_model")
        drafter = options.get("drafter", "ngram" if draft_model is None else "model")
        settings = dict(options.get("drafter_options", {}))
        if not isinstance(drafter, str):
            if settings or draft_model is not None:
                raise InvalidInput(
                    "drafter_options and draft_model go with a drafter given by name; the one "
                    "given has its settings already"
                )
            return drafter
        wants_model = "model" in getattr(
            registry.find("drafter", drafter), "__dataclass_fields__", {}
        )
        if wants_model and draft_model is None:
            raise InvalidInput(f"drafter {drafter!r} needs a draft_model; give a name, say")
        if draft_model is not None:
            if not wants_model:
                raise InvalidInput(f"drafter {drafter!r} takes no draft_model; leave it out")
            settings["model"] = self._draft_model(draft_model).target
        if references := settings.get("references"):
            if isinstance(references, str):
                references = [references]
            settings["references"] = tuple(
                tuple(self.encode(reference)) for reference in references
            )
        drafter_object: Drafter = registry.make("drafter", drafter, settings)
        return drafter_object

    def _draft_model(self, source: LanguageModel | str | Path) -> LanguageModel:
        if not isinstance(source, (LanguageModel, str, Path)):
            raise InvalidInput(
                f"draft_model must be a name, a path or a loaded model; it is a "
                f"{type(source).__name__}: load it first, with paceline.load(model, tokenizer)"
            )
        # Loaded, and its tokenizer compared, once: the next call drafts at once.
        if isinstance(source, LanguageModel):
            draft = source
        else:
            if str(source) not in self._drafts:
                self._drafts[str(source)] = load(source)
            draft = self._drafts[str(source)]
        if draft not in self._checked and None not in (self.tokenizer, draft.tokenizer):
            check_same_tokenizer(self, draft)
            self._checked.add(draft)
        return draft

    def _needed_tokenizer(self, purpose: str) -> Any:
        if self.tokenizer is None:
            raise InvalidInput(
                f"{purpose} needs a tokenizer, and {self.name} was loaded without one; pass it to "
                "load, or give token ids"
            )
        return self.tokenizer


def check_same_tokenizer(target: LanguageModel, draft: LanguageModel) -> None:
    """Raise unless both models mean the same text by the same ids.

    Padding of the vocabularies, which no text uses, may differ.
    """
    ours, theirs = target.tokenizer.get_vocab(), draft.tokenizer.get_vocab()
    if ours == theirs:
        return
    differing = [token for token, number in ours.items() if theirs.get(token, number) != number]
    extra = ours.keys() ^ theirs.keys()
    if differing or len(extra) > 0.01 * len(ours):
        raise InvalidInput(
            f"the draft model {draft.name} has another tokenizer than {target.name}: "
            f"{len(extra)} tokens stand in one vocabulary alone and {len(differing)} have another "
            "number; choose a draft model of the same family"
        )


def _seed(params: SamplingParams) -> int:
    """The seed that was asked for, or a fresh one."""
    return secrets.randbits(63) if params.seed is None else params.seed


class _Job:
    """One answer in the making: a fold over the events of its sequence."""

    def __init__(
        self, request: Request, verifier: Verifier, seed: int, text: TextStream | None
    ) -> None:
        self.request, self.verifier, self.seed, self.text = request, verifier, seed, text
        self.metrics = Metrics()
        self.tokens: list[int] = []
        self.logprobs: list[float] = []
        self.top_logprobs: list[tuple[tuple[int, float], ...]] = []
        self.finish_reason = ""
        self.last_drafted = False
        self.start = self.end = perf_counter()

    def take(self, event: Event) -> Chunk | None:
        """Take in an event; the text that it brought."""
        self.metrics = self.metrics.add(event)
        self.end = perf_counter()
        if isinstance(event, Prefilled):
            self.start = self.end
        elif isinstance(event, Finished):
            self.finish_reason = event.reason.value
            rest = "" if self.text is None else self.text.finish()
            return Chunk((Piece(rest, self.tokens[-1], self.last_drafted),)) if rest else None
        else:
            self.tokens += event.tokens
            self.logprobs += event.logprobs or ()
            self.top_logprobs += event.top_logprobs or ()
            self.last_drafted = len(event.tokens) == event.num_accepted_tokens
            return Chunk(tuple(self._pieces(event)))
        return None

    def pause(self, seconds: float) -> None:
        """Leave out time that just went by without decoding."""
        self.start += seconds
        self.end += seconds

    def _pieces(self, event: Round) -> Iterator[Piece]:
        for offset, token in enumerate(event.tokens):
            text = "" if self.text is None else self.text.feed([token])
            yield Piece(text, token, drafted=offset < event.num_accepted_tokens)

    def generation(self, load_seconds: float) -> Generation:
        """The finished answer."""
        asked = self.request.logprobs is not None
        return Generation(
            text="" if self.text is None else self.text.text,
            token_ids=tuple(self.tokens),
            finish_reason=self.finish_reason,
            num_prompt_tokens=len(self.request.prompt),
            seed=self.seed,
            drafter=self.request.drafter.name,
            exact=self.verifier.exact,
            metrics=self.metrics,
            decode_seconds=self.end - self.start,
            load_seconds=load_seconds,
            logprobs=tuple(self.logprobs) if asked else None,
            top_logprobs=tuple(self.top_logprobs) if asked else None,
        )


def _stream(
    events: Generator[Event], job: _Job, load_seconds: float
) -> Generator[Chunk | Generation]:
    with closing(events):
        for event in events:
            if (chunk := job.take(event)) is not None:
                start = perf_counter()
                yield chunk
                job.pause(perf_counter() - start)
    yield job.generation(load_seconds)
