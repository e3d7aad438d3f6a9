"""The Python interface: `load` a model, then `generate` or `stream`. It assembles the parts."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, Unpack, overload

import torch

from paceline.checks import require_int, token_ids
from paceline.core.protocols import Drafter, Target
from paceline.core.sampling import SamplingParams
from paceline.core.traits import models_of
from paceline.engine.loop import decode
from paceline.errors import InvalidInput
from paceline.generate import jobs
from paceline.generate.call import Call, resolve
from paceline.generate.draft_heads import DraftHeads
from paceline.generate.draft_models import DraftModels
from paceline.generate.drafts import DraftForm, DraftShape, HeadTokens, cheapest_form
from paceline.generate.grammars import Grammars
from paceline.generate.jobs import Job
from paceline.generate.options import Options, checked
from paceline.generate.results import Chunk, Generation, Piece
from paceline.generate.traces import lane_for, recording_of
from paceline.generate.waiting import told_if_slow
from paceline.kernels.packing import Storage
from paceline.models import Progress, devices, loading
from paceline.models.finding import find_model
from paceline.models.loading import Loaded
from paceline.targets.cached import CachedTarget
from paceline.targets.decoder import Decoder
from paceline.targets.invariant import make_invariant
from paceline.text import ChatOptions, encode_prompt

__all__ = [
    "Chunk",
    "Generation",
    "LanguageModel",
    "Options",
    "Piece",
    "Prompt",
    "load",
    "load_draft",
]

Prompt = str | Sequence[Mapping[str, Any]] | Sequence[int]
"""A text, chat messages (`role` and `content`), or token ids."""


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
    device: Any = None,
    device_map: Any = None,
    adapter: str | Path | None = None,
    progress: Progress | None = None,
) -> LanguageModel:
    """Load a model to decode with, or to draft with.

    Args:
        source: a known name (`paceline models` lists them), a folder in Hugging Face layout, a GGUF
            file, a hub name, or a loaded model of `transformers`.
        tokenizer: its tokenizer; needed for text with a loaded model.
        dtype: "auto", "float32", "bfloat16" or "float16". "auto" is the dtype of the files, with
            float32 in place of float16 on a CPU; for GGUF files it is bfloat16 if the processor has
            instructions for it. In float16 a model runs by its own modules, not the lean decoder.
        storage: how weights are stored: "auto" packs them for the CPU where that is faster, "plain"
            does not; "int8" and "int4" are for draft models, which need not be accurate.
        head_tokens: cut the output head to this many of the most frequent tokens, or to these ids,
            plus the tokens of the text so far; for draft models only, since it limits what the
            model can say.
        invariant: decode in passes of one fixed shape, so that the tokens are bit for bit the same
            whatever is drafted.
        trust_remote_code: run the Python code that comes with the model.
        allow_pickle: unpickle weights if there are no safetensors. That runs any code in them.
            Draft heads for this model may then be pickled too.
        device: where the weights go, such as "cuda"; None is the CPU. Elsewhere a model runs by its
            own modules, unpacked and with its whole head.
        device_map: as for `from_pretrained` of transformers; needs accelerate.
        adapter: the folder of a LoRA adapter that peft wrote; it is merged into the weights. Such a
            folder as `source` is the same with the model that it names.
        progress: called with (done, total, text) during slow steps. Without it, a load that takes
            seconds prints a line if standard error is a terminal.

    Raises:
        PacelineError: the message says what was expected, what was given and what to do.

    Example:
        >>> model = load("smollm2-135m")  # doctest: +SKIP
        >>> model.generate("The capital of France is", max_tokens=8).text  # doctest: +SKIP
    """
    start = perf_counter()
    loading.check_storage(storage)
    if isinstance(source, (str, Path)):
        if tokenizer is not None:
            raise InvalidInput("a model given by name has its own tokenizer; leave it out")
        with told_if_slow(str(source), progress) as tell:
            loaded = loading.load_files(
                source,
                storage=storage,
                head_tokens=head_tokens,
                dtype=dtype,
                trust_remote_code=trust_remote_code,
                allow_pickle=allow_pickle,
                device=device,
                device_map=device_map,
                adapter=adapter,
                progress=tell,
            )
    else:
        if head_tokens is not None or dtype != "auto" or adapter is not None:
            raise InvalidInput(
                "dtype, head_tokens and adapter are for models that Paceline loads itself"
            )
        devices.check_place(source, device, device_map)
        loaded = loading.load_object(source, tokenizer, storage)
    target = make_invariant(loaded.decoder) if invariant else CachedTarget(loaded.decoder)
    return _language_model(target, loaded, start, allow_pickle=allow_pickle)


def load_draft(
    source: str | Path,
    storage: Storage | None = None,
    head_tokens: HeadTokens = None,
    *,
    dtype: str | torch.dtype = "auto",
    device: Any = None,
    adapter: str | Path | None = None,
    trust_remote_code: bool = False,
    allow_pickle: bool = False,
    progress: Progress | None = None,
) -> LanguageModel:
    """Load a model to draft with, in the cheapest form that pays off on this machine.

    This is what `generate` does with a draft model given by name. Load it yourself to share it
    between targets.

    Args:
        source: as for `load`, a name or a path.
        storage: how its weights are stored; None means int4 or int8 if that is fast and the model
            is large enough to be limited by memory bandwidth, else "auto".
        head_tokens: cut its output head to this many of the most frequent tokens; None means 48,000
            if the vocabulary is clearly larger, "all" keeps the whole head.
        dtype, device, adapter, trust_remote_code, allow_pickle, progress: as for `load`. Put it
            where its target is: `generate` does that too.

    Raises:
        PacelineError: see `load`.

    Example:
        >>> draft = load_draft("qwen2.5-coder-0.5b")  # doctest: +SKIP
        >>> print(draft.form)  # doctest: +SKIP
        int4, 48,000 of 151,936 head tokens
    """
    start = perf_counter()
    if storage is not None:
        loading.check_storage(storage)
    with told_if_slow(str(source), progress) as tell:
        found = find_model(
            source,
            dtype=dtype,
            device=device,
            adapter=adapter,
            trust_remote_code=trust_remote_code,
            allow_pickle=allow_pickle,
            progress=tell,
        )
        shape = DraftShape.of(found.config, found.tokenizer, is_lean=found.not_lean is None)
        form = cheapest_form(shape, storage=storage, head_tokens=head_tokens)
        loaded = loading.load_weights(found, storage=form.storage, head_tokens=form.head_tokens)
    return _language_model(CachedTarget(loaded.decoder), loaded, start, form)


def _language_model(
    target: Target,
    loaded: Loaded,
    start: float,
    form: DraftForm | None = None,
    *,
    allow_pickle: bool = False,
) -> LanguageModel:
    seconds = perf_counter() - start
    return LanguageModel(
        target,
        loaded.decoder,
        loaded.tokenizer,
        loaded.eos_token_ids,
        seconds,
        form,
        loaded.sampling,
        allow_pickle,
    )


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True, repr=False)
class LanguageModel:
    """A loaded model. Several threads may use one. Make it with `load`."""

    target: Target
    decoder: Decoder
    tokenizer: Any
    eos_token_ids: frozenset[int]
    load_seconds: float = 0.0
    form: DraftForm | None = None
    """For a model from `load_draft`: how its weights are stored."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """The sampling options that its generation config sets; the options of a call take
    precedence."""
    allow_pickle: bool = False
    """Whether its draft heads may be pickled."""
    _drafts: DraftModels = field(init=False, repr=False)
    _heads: DraftHeads = field(init=False, repr=False)
    _grammars: Grammars = field(init=False, repr=False)

    def __post_init__(self) -> None:
        info = self.target.info
        drafts = DraftModels(info, self.tokenizer, self._load_draft)
        object.__setattr__(self, "_drafts", drafts)
        heads = DraftHeads(
            info,
            lambda: self.decoder.device,
            self.allow_pickle,
            lambda count, size: loading.head_ids(count, size, self.tokenizer, self.eos_token_ids),
        )
        object.__setattr__(self, "_heads", heads)
        grammars = Grammars(info, self.tokenizer, self.eos_token_ids)
        object.__setattr__(self, "_grammars", grammars)

    def _load_draft(
        self, source: str | Path, storage: Storage | None, head_tokens: HeadTokens
    ) -> LanguageModel:
        """A draft model, where the target is."""
        return load_draft(source, storage, head_tokens, device=self.decoder.device)

    def __repr__(self) -> str:
        """The name, and how a draft model is stored; a tokenizer would fill the screen."""
        return f"<LanguageModel {self.name}{'' if self.form is None else f': {self.form}'}>"

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
            n: return n independent samples, as a list; None returns one answer. The i-th sample is
                what `seed + i` gives on its own.
            options: see `Options`.

        Raises:
            InvalidInput: an option or prompt is invalid.
        """
        if n is None:
            return self._run(self._jobs([prompt], options))[0]
        prompts = [prompt] * require_int("n", n, low=1)
        return self._run_samples(self._jobs(prompts, options, samples=True))

    def generate_batch(
        self, prompts: Sequence[Prompt], **options: Unpack[Options]
    ) -> list[Generation]:
        """Answer several prompts together, with one target pass per round for all of them.

        Each gets the answer that it would get alone with the same seed.
        """
        if isinstance(prompts, (str, Mapping)) or not isinstance(prompts, Sequence):
            raise InvalidInput(
                f"generate_batch takes a list of prompts; for one prompt use generate. It was "
                f"given {prompts!r:.80}"
            )
        return self._run(self._jobs(prompts, options))

    def prepare(
        self, prompts: Sequence[Prompt], *, samples: bool = False, **options: Unpack[Options]
    ) -> list[Job]:
        """The requests that `generate_batch` would pass to the engine; runs nothing.

        For tools that look inside a run, and for engines that take requests as they come: each job
        has its `request`.

        Args:
            prompts: the prompts.
            samples: give the jobs consecutive seeds, as `generate` does with `n`.
            options: see `Options`.
        """
        return self._jobs(prompts, options, samples=samples)

    def _run(self, batch: Sequence[Job]) -> list[Generation]:
        events = decode(self.target, [job.request for job in batch])
        return jobs.finish(events, batch, self.load_seconds)

    def _run_samples(self, batch: Sequence[Job]) -> list[Generation]:
        """Answers to one prompt, which each model reads once for all of them."""
        models: list[Target] = [self.target, *models_of(batch[0].request.drafter)]
        with ExitStack() as stack:
            for model in models:
                if model.prefixes is not None:
                    stack.enter_context(model.prefixes.held())
            return self._run(batch)

    def stream(self, prompt: Prompt, **options: Unpack[Options]) -> Generator[Chunk | Generation]:
        """Answer a prompt piece by piece: `Chunk`s as they are ready, then the `Generation`.

        Characters are never split, and text that may still turn out to be a stop string is held
        back. Closing the iterator stops the generation. Invalid options and prompts raise here,
        before the first piece is requested.
        """
        (job,) = self._jobs([prompt], options)
        events = decode(self.target, [job.request])
        return jobs.stream(events, job, self.load_seconds)

    def sampling(self, **options: Any) -> SamplingParams:
        """How tokens are drawn with these sampling options; the model's own hold for the others.

        Raises:
            InvalidInput: a value outside its range.
        """
        return SamplingParams(**{**self.sampling_defaults, **options})

    def drafter(self, **options: Unpack[Options]) -> Drafter:
        """The drafter that these options describe, as `generate` makes it.

        A draft model given by name is loaded, once.
        """
        return self._call(checked(options)).drafter

    def encode(self, prompt: Prompt, chat: ChatOptions | None = None) -> list[int]:
        """The token ids of a prompt: chat messages through the model's template.

        Args:
            prompt: a text, chat messages, or token ids.
            chat: what the template receives in addition to the messages.

        Raises:
            InvalidInput: the prompt is invalid, or there are chat options without messages.
        """
        if isinstance(prompt, str):
            return encode_prompt(self._needed_tokenizer("a text prompt"), prompt, chat=chat)
        if isinstance(prompt, bytes) or not isinstance(prompt, Iterable):
            raise InvalidInput(
                f"a prompt is a text, chat messages or token ids; it is {prompt!r:.80}"
            )
        parts = list(prompt)
        if isinstance(prompt, Mapping) or any(isinstance(part, Mapping) for part in parts):
            tokenizer = self._needed_tokenizer("a chat prompt")
            return encode_prompt(tokenizer, prompt, chat=chat)  # type: ignore[arg-type]
        if any(isinstance(part, str) for part in parts):
            raise InvalidInput(
                "a prompt is a text, chat messages or token ids; this is a list of texts: answer "
                "several prompts with generate_batch"
            )
        if chat is not None:
            chat.refuse("token ids")
        return list(token_ids("the prompt must be a sequence of token ids", parts))

    def _jobs(
        self, prompts: Sequence[Prompt], options: Options, *, samples: bool = False
    ) -> list[Job]:
        """Turn options into requests; everything that can be wrong with them is detected here.

        Every prompt gets the seed of the options, or a fresh one; `samples` of one prompt get
        consecutive seeds.
        """
        values = checked({**self.sampling_defaults, **options})
        if not prompts:
            raise InvalidInput("there is no prompt; give at least one")
        recording = recording_of(values["trace"], len(prompts))
        call = self._call(values)
        chat = ChatOptions(
            values["tools"],
            values["chat_template_kwargs"] or {},
            values["continue_final_message"],
        )
        first_seed = call.seed()
        found = [
            call.job(
                self.encode(prompt, chat),
                (first_seed + number) % 2**64 if samples else call.seed(),
            )
            for number, prompt in enumerate(prompts)
        ]
        if recording is not None:
            (job,) = found
            job.recorder = lane_for(
                job, recording, model=self.name, prompt=prompts[0], tokenizer=self.tokenizer
            )
        return found

    def _call(self, values: Mapping[str, Any]) -> Call:
        return resolve(
            values,
            target=self.target.info,
            tokenizer=self.tokenizer,
            eos_token_ids=self.eos_token_ids,
            drafts=self._drafts,
            heads=self._heads,
            grammars=self._grammars,
        )

    def _needed_tokenizer(self, purpose: str) -> Any:
        if self.tokenizer is None:
            raise InvalidInput(
                f"{purpose} needs a tokenizer, and {self.name} was loaded without one; pass it to "
                "load, or give token ids"
            )
        return self.tokenizer
