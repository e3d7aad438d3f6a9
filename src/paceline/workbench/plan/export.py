"""Settings for the engine that will serve, in its own option names.

Names as of late 2026, from the engines' documentation and sources: transformers 5, vLLM 0.32,
SGLang 0.5, llama.cpp (the `--spec-*` options), TensorRT-LLM with the PyTorch backend.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.errors import InvalidInput, UnknownName
from paceline.models.known import KNOWN, place
from paceline.workbench.workload.methods import USUAL_FORM, DraftSource, HeadForm


@dataclass(frozen=True, slots=True)
class Choice:
    """The choice to export.

    Args:
        target: the model to serve.
        drafter: "model", "ngram", "suffix", "early-exit", or "none".
        num_draft_tokens: k; 0 with "none", and "auto" if a controller chooses.
        typical_length: in place of "auto", for engines that take only a number.
        head: how a draft head is loaded, if there is one and no draft model.
        draft: the draft model, if there is one. How it is loaded concerns only Paceline.
        settings: of the drafter.
        by_batch: (smallest batch, largest batch, k), rising, for engines that take a table.
    """

    target: str
    drafter: str
    num_draft_tokens: int | str
    draft: DraftSource | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    by_batch: Sequence[tuple[int, int, int]] = ()
    typical_length: int = 1
    head: HeadForm = USUAL_FORM

    @property
    def fixed_length(self) -> int:
        """The draft length as a number."""
        k = self.num_draft_tokens
        return k if isinstance(k, int) else self.typical_length

    @property
    def draft_model(self) -> str | None:
        """The name of the draft model."""
        return None if self.draft is None else self.draft.name


def export(engine: str, choice: Choice) -> str:
    """The settings of `choice` as `engine` takes them: JSON, YAML or a command line.

    Raises:
        UnknownName: no such engine; names the nearest.
        InvalidInput: the engine has no drafter of this kind.

    Example:
        >>> print(export("paceline", Choice("smollm2-135m", "ngram", 8)))
        paceline generate --model smollm2-135m --drafter ngram -k 8
    """
    if engine not in ENGINES:
        raise UnknownName.among("engine", engine, ENGINES)
    chosen = _as_known_to(engine, choice)
    if choice.drafter == "none" or choice.num_draft_tokens == 0:
        return _PLAIN[engine](chosen)
    return ENGINES[engine](chosen)


def notes(engine: str, choice: Choice) -> list[str]:
    """What a user of the settings has to know because `engine` is not Paceline, in sentences."""
    if engine == "paceline" or choice.drafter == "none" or choice.num_draft_tokens == 0:
        return []
    found = []
    if choice.num_draft_tokens == "auto":
        found.append(
            f"{engine} needs a fixed draft length, and auto was best here: {choice.typical_length} "
            "is the mean length that auto drafted, and was not measured as a fixed one."
        )
    draft = choice.draft
    if draft is not None and (draft.storage not in _WHOLE or draft.head_tokens != "all"):
        found.append(
            f"The draft length was found with {_form(draft)}, a form that Paceline makes. {engine} "
            "drafts with the original model, so a draft takes longer there and fewer tokens may be "
            "better: plan again with --draft-storage plain --draft-head-tokens all in the bench."
        )
    return found


_WHOLE = ("plain", "packed", "auto")


def _form(draft: DraftSource) -> str:
    """How Paceline loads a draft model."""
    parts = []
    if draft.storage not in _WHOLE:
        parts.append(f"weights in {draft.storage or 'a cheap form'}")
    if draft.head_tokens is None:
        parts.append("an output head as small as pays")
    elif draft.head_tokens != "all":
        parts.append(f"an output head of {draft.head_tokens:,} tokens")
    return f"a draft model that has {' and '.join(parts)}"


def _as_known_to(engine: str, choice: Choice) -> Choice:
    """The choice with model names and a draft length that the engine accepts."""
    if engine == "paceline":
        return choice
    draft = choice.draft
    return replace(
        choice,
        target=_model_for(engine, choice.target),
        draft=None if draft is None else draft._replace(name=_model_for(engine, draft.name)),
        num_draft_tokens=choice.fixed_length,
    )


def _model_for(engine: str, name: str) -> str:
    """A model that Paceline knows by name: its file for llama.cpp, else its name on the hub."""
    if name not in KNOWN:
        return name
    return str(place(name)) if engine == "llama.cpp" else KNOWN[name].hub_id


def _transformers(choice: Choice) -> str:
    """Keyword arguments of `generate`."""
    if choice.drafter == "model":
        options: dict[str, Any] = {
            "assistant_model": choice.draft_model,
            "num_assistant_tokens": choice.num_draft_tokens,
            "num_assistant_tokens_schedule": "constant",
            # Its default of .4 stops drafts early, which the plan does not assume.
            "assistant_confidence_threshold": 0.0,
        }
    elif choice.drafter == "ngram":
        options = {
            "prompt_lookup_num_tokens": choice.num_draft_tokens,
            "max_matching_ngram_size": choice.settings.get("max_ngram", 3),
        }
    elif choice.drafter == "early-exit":
        options = {
            "assistant_early_exit": choice.settings["num_layers"],
            "num_assistant_tokens": choice.num_draft_tokens,
            "num_assistant_tokens_schedule": "constant",
        }
    else:
        raise _no_such("transformers", choice)
    return json.dumps(options, indent=2)


def _vllm(choice: Choice) -> str:
    if choice.drafter == "model":
        options: dict[str, Any] = {"method": "draft_model", "model": choice.draft_model}
    elif choice.drafter == "ngram":
        options = {
            "method": "ngram",
            "prompt_lookup_min": choice.settings.get("min_ngram", 1),
            "prompt_lookup_max": choice.settings.get("max_ngram", 3),
        }
    elif choice.drafter == "suffix":
        options = {"method": "suffix"}
    else:
        raise _no_such("vllm", choice)
    options["num_speculative_tokens"] = choice.num_draft_tokens
    if choice.by_batch:
        table = [list(row) for row in choice.by_batch]
        options["num_speculative_tokens_per_batch_size"] = table
    return f"vllm serve {shlex.quote(choice.target)} --speculative-config " + shlex.quote(
        json.dumps(options)
    )


def _sglang(choice: Choice) -> str:
    k = choice.fixed_length
    start = ["python", "-m", "sglang.launch_server", "--model-path", choice.target]
    if choice.drafter == "model":
        more = [
            *("--speculative-algorithm", "STANDALONE"),
            *("--speculative-draft-model-path", choice.draft_model),
            *("--speculative-num-steps", k),
            *("--speculative-eagle-topk", 1),
            # The root counts as one of the tokens.
            *("--speculative-num-draft-tokens", k + 1),
        ]
    elif choice.drafter == "ngram":
        more = [
            *("--speculative-algorithm", "NGRAM"),
            *("--speculative-num-draft-tokens", k + 1),
            *("--speculative-ngram-max-bfs-breadth", 1),
        ]
    else:
        raise _no_such("sglang", choice)
    return shlex.join(map(str, [*start, *more]))


def _llama_cpp(choice: Choice) -> str:
    k, start = choice.fixed_length, ["llama-server", "-m", choice.target]
    if choice.drafter == "model":
        more = ["-md", choice.draft_model, "--spec-type", "draft-simple", "--spec-draft-n-max", k]
        more += ["--spec-draft-n-min", 0, "--spec-draft-p-min", 0]
    elif choice.drafter == "ngram":
        more = [
            *("--spec-type", "ngram-simple"),
            *("--spec-ngram-simple-size-n", choice.settings.get("max_ngram", 3)),
            *("--spec-ngram-simple-size-m", k),
        ]
    else:
        raise _no_such("llama.cpp", choice)
    return shlex.join(map(str, [*start, *more]))


def _tensorrt_llm(choice: Choice) -> str:
    """A YAML file for `trtllm-serve --extra_llm_api_options`."""
    lines = ["speculative_config:"]
    if choice.drafter == "model":
        lines += ["  decoding_type: Draft_Target", f"  speculative_model: {choice.draft_model}"]
    elif choice.drafter == "ngram":
        size = choice.settings.get("max_ngram", 3)
        lines += ["  decoding_type: NGram", f"  max_matching_ngram_size: {size}"]
    else:
        raise _no_such("tensorrt-llm", choice)
    lines.append(f"  max_draft_len: {choice.num_draft_tokens}")
    if paying := [high for _, high, k in choice.by_batch if k]:
        lines.append(f"  max_concurrency: {max(paying)}")
    return "\n".join(lines)


def _paceline(choice: Choice) -> str:
    words: list[Any] = ["paceline", "generate", "--model", choice.target]
    words += ["--drafter", choice.drafter, "-k", choice.num_draft_tokens]
    if choice.draft is not None:
        words += ["--draft-model", choice.draft.name]
    form = choice.head if choice.draft is None else choice.draft
    for option, value in (
        ("--draft-storage", form.storage),
        ("--draft-head-tokens", form.head_tokens),
    ):
        if value is not None:
            words += [option, value]
    for name, value in choice.settings.items():
        words += ["--drafter-option", f"{name}={json.dumps(value)}"]
    return shlex.join(map(str, words))


def _no_such(engine: str, choice: Choice) -> InvalidInput:
    return InvalidInput(
        f"{engine} has no drafter like {choice.drafter!r}; export a plan for another method, or "
        "serve with Paceline"
    )


ENGINES: dict[str, Callable[[Choice], str]] = {
    "transformers": _transformers,
    "vllm": _vllm,
    "sglang": _sglang,
    "llama.cpp": _llama_cpp,
    "tensorrt-llm": _tensorrt_llm,
    "paceline": _paceline,
}

_PLAIN: dict[str, Callable[[Choice], str]] = {
    "transformers": lambda choice: "{}",
    "vllm": lambda choice: shlex.join(["vllm", "serve", choice.target]),
    "sglang": lambda choice: shlex.join(
        ["python", "-m", "sglang.launch_server", "--model-path", choice.target]
    ),
    "llama.cpp": lambda choice: shlex.join(["llama-server", "-m", choice.target]),
    "tensorrt-llm": lambda choice: "speculative_config: null",
    "paceline": lambda choice: shlex.join(
        ["paceline", "generate", "--model", choice.target, "--drafter", "none"]
    ),
}
