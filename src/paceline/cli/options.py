"""The options that commands share, declared once: name, type, panel in the help, meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paceline.generate import plugins
from paceline.generate.option_table import (
    DRAFTING,
    MODEL,
    OUTPUT,
    PROMPT,
    SAMPLING,
    TABLE,
)
from paceline.models.known import KNOWN
from paceline.models.settings import TAKEN


def _option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


def _shared(name: str, **settings: Any) -> Any:
    """An option of the table that all interfaces share."""
    option = TABLE[name]
    if option.kind == "whole":
        settings = {"min": option.low, "max": option.high, **settings}
    return _option(
        *option.flags, panel=option.panel, about=option.about, metavar=option.metavar, **settings
    )


def _switch(*names: str, panel: str, about: str) -> Any:
    return _option(*names, panel=panel, about=about, metavar="")


def paragraphs(command: Callable[..., None]) -> str:
    """What a command says of itself, without the line ends of its source."""
    text = inspect.cleandoc(command.__doc__ or "")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def model_names() -> list[str]:
    """Model names for shell completion."""
    return list(KNOWN)


Prompt = Annotated[
    str | None,
    _option(
        "--prompt",
        "-p",
        panel=PROMPT,
        metavar="TEXT",
        about="The prompt. Without it and --messages, standard input is read.",
    ),
]
Messages = Annotated[
    Path | None,
    _option(
        "--messages",
        panel=PROMPT,
        metavar="FILE",
        about="A JSON file of chat messages: a list of objects with role and content.",
    ),
]
Tools = Annotated[Path | None, _shared("tools")]
ChatOption = Annotated[list[str] | None, _shared("chat_template_kwargs")]
ContinueFinalMessage = Annotated[bool, _shared("continue_final_message")]
Raw = Annotated[
    bool,
    _switch("--raw", panel=PROMPT, about="Continue the text as it is, without the chat template."),
]
Model = Annotated[
    str,
    _option(
        "--model",
        "-m",
        panel=MODEL,
        metavar="NAME|FOLDER|GGUF",
        about="A name that `paceline models` lists, a folder in Hugging Face layout, a GGUF "
        "file, or a hub name.",
        autocompletion=model_names,
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16", "float16"],
    _option(
        "--dtype",
        metavar="auto|float32|bfloat16|float16",
        panel=MODEL,
        about="The dtype of the weights.",
    ),
]
Device = Annotated[
    str | None,
    _option(
        "--device",
        metavar="DEVICE",
        panel=MODEL,
        about="Where the weights go, such as cuda:0. Elsewhere than on the CPU a model runs by "
        "its own modules.",
    ),
]
Adapter = Annotated[
    str | None,
    _option(
        "--adapter",
        metavar="FOLDER",
        panel=MODEL,
        about="A LoRA adapter, as peft writes it, to merge into the weights.",
    ),
]
Storage = Annotated[
    Literal["auto", "plain", "packed"],
    _option(
        "--storage",
        metavar="auto|plain|packed",
        panel=MODEL,
        about="Whether weights are packed for the CPU.",
    ),
]
Invariant = Annotated[
    bool,
    _switch(
        "--invariant",
        panel=MODEL,
        about="Passes of one fixed shape: bit for bit the same tokens, whatever the drafts.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    _switch("--trust-remote-code", panel=MODEL, about="Run Python code that comes with the model."),
]
AllowPickle = Annotated[
    bool,
    _switch(
        "--allow-pickle",
        panel=MODEL,
        about="Load pickled weights if there are no others; that runs any code in them.",
    ),
]
Settings = Annotated[Path | None, _shared("settings")]
Drafter = Annotated[str | None, _shared("drafter", autocompletion=lambda: plugins.names("drafter"))]


def draft_length(text: str) -> int | Literal["auto"]:
    """An integer of at least 0, or "auto".

    >>> draft_length("5"), draft_length("auto")
    (5, 'auto')
    """
    if text == "auto":
        return "auto"
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(f"it is 'auto' or a whole number of at least 0, not {text!r}")
    return int(text)


def head_tokens(text: str) -> int | Literal["all"]:
    """An integer above 0, or "all".

    >>> head_tokens("48000"), head_tokens("all")
    (48000, 'all')
    """
    if text == "all":
        return "all"
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"it is 'all' or a whole number of at least 1, not {text!r}")
    return int(text)


DraftLength = Annotated[Any, _shared("num_draft_tokens", parser=draft_length)]
Controller = Annotated[
    str | None, _shared("controller", autocompletion=lambda: plugins.names("controller"))
]
ControllerOption = Annotated[list[str] | None, _shared("controller_options")]
Verify = Annotated[str | None, _shared("verify", autocompletion=lambda: plugins.names("verifier"))]
VerifyOption = Annotated[list[str] | None, _shared("verify_options")]
DraftModel = Annotated[str | None, _shared("draft_model", autocompletion=model_names)]
DraftHead = Annotated[str | None, _shared("draft_head")]
DraftStorage = Annotated[
    Literal["auto", "plain", "packed", "int8", "int4"] | None, _shared("draft_storage")
]
DraftHeadTokens = Annotated[Any, _shared("draft_head_tokens", parser=head_tokens)]
Reference = Annotated[
    list[Path] | None,
    _option(
        "--reference",
        panel=DRAFTING,
        metavar="FILE",
        about="A text that the answer may quote, for ngram and reference. Repeatable.",
    ),
]
Prediction = Annotated[
    Path | None,
    _option(
        "--prediction",
        panel=DRAFTING,
        metavar="FILE",
        about="The expected text of the answer, up to edits, for predicted-output.",
    ),
]
MaxNgram = Annotated[
    int | None,
    _option(
        "--max-ngram", metavar="N", panel=DRAFTING, about="The longest n-gram that ngram looks up."
    ),
]
MinNgram = Annotated[
    int | None, _option("--min-ngram", metavar="N", panel=DRAFTING, about="The shortest.")
]
NgramMatch = Annotated[
    Literal["newest", "oldest"] | None,
    _option(
        "--ngram-match",
        metavar="newest|oldest",
        panel=DRAFTING,
        about="Which earlier occurrence ngram copies.",
    ),
]
DrafterOption = Annotated[list[str] | None, _shared("drafter_options")]
Temperature = Annotated[float, _shared("temperature")]
TopK = Annotated[int | None, _shared("top_k")]
TopP = Annotated[float | None, _shared("top_p")]
MinP = Annotated[float | None, _shared("min_p")]
RepetitionPenalty = Annotated[float | None, _shared("repetition_penalty")]
PresencePenalty = Annotated[float, _shared("presence_penalty")]
FrequencyPenalty = Annotated[float, _shared("frequency_penalty")]
Seed = Annotated[int | None, _shared("seed")]
Samples = Annotated[
    int | None,
    _option(
        "--samples",
        "-n",
        panel=SAMPLING,
        min=1,
        metavar="N",
        about="N independent answers.",
    ),
]
MaxTokens = Annotated[int, _shared("max_tokens")]
MinTokens = Annotated[int, _shared("min_tokens")]
Stop = Annotated[list[str] | None, _shared("stop")]
Stream = Annotated[
    bool | None,
    _switch(
        "--stream/--no-stream",
        panel=OUTPUT,
        about="Print the text as it comes. Default: on a terminal.",
    ),
]
Logprobs = Annotated[int | None, _shared("logprobs")]
AsJson = Annotated[bool, _switch("--json", panel=OUTPUT, about="Print one JSON object.")]

SAMPLED = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "seed",
)
"""How a token is drawn: fields of `SamplingParams`."""


def without_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The options, except those that were left out and are set by the model's generation config.

    >>> without_defaults({"temperature": 0.7, "top_k": None, "top_p": 0.9, "seed": None})
    {'temperature': 0.7, 'top_p': 0.9, 'seed': None}
    """
    return {name: value for name, value in given.items() if value is not None or name not in TAKEN}


DRAFTED = (
    "drafter",
    "num_draft_tokens",
    "controller",
    "controller_options",
    "verify",
    "verify_options",
    "draft_model",
    "draft_head",
    "draft_storage",
    "draft_head_tokens",
    "drafter_options",
    "settings",
)
"""How drafts are made and verified."""

CHAT = ("tools", "chat_template_kwargs", "continue_final_message")
"""What a chat template receives in addition to the messages."""

_FORMS: dict[str, Any] = {
    "drafter": Drafter,
    "num_draft_tokens": DraftLength,
    "controller": Controller,
    "controller_options": ControllerOption,
    "verify": Verify,
    "verify_options": VerifyOption,
    "draft_model": DraftModel,
    "draft_head": DraftHead,
    "draft_storage": DraftStorage,
    "draft_head_tokens": DraftHeadTokens,
    "drafter_options": DrafterOption,
    "settings": Settings,
    "temperature": Temperature,
    "top_k": TopK,
    "top_p": TopP,
    "min_p": MinP,
    "repetition_penalty": RepetitionPenalty,
    "presence_penalty": PresencePenalty,
    "frequency_penalty": FrequencyPenalty,
    "seed": Seed,
    "max_tokens": MaxTokens,
    "min_tokens": MinTokens,
    "stop": Stop,
    "logprobs": Logprobs,
    "tools": Tools,
    "chat_template_kwargs": ChatOption,
    "continue_final_message": ContinueFinalMessage,
}


def takes(
    *names: str, before: str | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of the table; it receives them as its first argument, by name.

    Args:
        names: the names of options in the table.
        before: the parameter of the command before which the help lists them; None is last.
        defaults: the command's own defaults, if different from the table's.

    Example:
        >>> @takes("temperature", "seed")
        ... def command(shared: dict[str, Any], name: str) -> None:
        ...     print(name, shared)
        >>> command(name="this", temperature=1.0, seed=3)
        this {'temperature': 1.0, 'seed': 3}
    """

    def wrap(command: Callable[..., None]) -> Callable[..., None]:
        own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
        shared = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, None if name in TAKEN else TABLE[name].default),
                annotation=_FORMS[name],
            )
            for name in names
        ]
        parameters = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in own]
        place = [one.name for one in own].index(before) if before else len(own)
        parameters[place:place] = shared

        @functools.wraps(command)
        def run(**values: Any) -> None:
            command({name: values.pop(name) for name in names}, **values)

        # typer reads both.
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        return run

    return wrap
