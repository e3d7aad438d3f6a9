"""The options that commands share, declared once: name, type, panel in the help, meaning."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paceline.generate import plugins
from paceline.generate.option_table import MODEL, OUTPUT, PROMPT, TABLE
from paceline.models.known import KNOWN
from paceline.models.settings import TAKEN


def option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    """An option of a command: its spellings, its panel in the help, its meaning."""
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


def _shared(name: str, **settings: Any) -> Any:
    """An option of the table that all interfaces share."""
    found = TABLE[name]
    if found.kind == "whole":
        settings = {"min": found.low, "max": found.high, **settings}
    return option(
        *found.flags, panel=found.panel, about=found.about, metavar=found.metavar, **settings
    )


def switch(*names: str, panel: str, about: str) -> Any:
    """An option that is given or not."""
    return option(*names, panel=panel, about=about, metavar="")


def paragraphs(command: Callable[..., None]) -> str:
    """What a command says of itself, without the line ends of its source."""
    text = inspect.cleandoc(command.__doc__ or "")
    return "\n\n".join(" ".join(part.split()) for part in text.split("\n\n"))


def model_names() -> list[str]:
    """Model names for shell completion."""
    return list(KNOWN)


Raw = Annotated[
    bool,
    switch("--raw", panel=PROMPT, about="Continue the text as it is, without the chat template."),
]
Model = Annotated[
    str,
    option(
        "--model",
        "-m",
        panel=MODEL,
        metavar="NAME|FOLDER|GGUF",
        about="A name that `paceline models` lists, a folder in Hugging Face layout, a GGUF "
        "file, or a hub name.",
        autocompletion=model_names,
    ),
]
AsJson = Annotated[bool, switch("--json", panel=OUTPUT, about="Print one JSON object.")]


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


_LOADING: dict[str, tuple[Any, Any]] = {
    "dtype": (
        Annotated[
            Literal["auto", "float32", "bfloat16", "float16"],
            option(
                "--dtype",
                metavar="auto|float32|bfloat16|float16",
                panel=MODEL,
                about="The dtype of the weights.",
            ),
        ],
        "auto",
    ),
    "device": (
        Annotated[
            str | None,
            option(
                "--device",
                metavar="DEVICE",
                panel=MODEL,
                about="Where the weights go, such as cuda:0. Elsewhere than on the CPU a model "
                "runs by its own modules.",
            ),
        ],
        None,
    ),
    "adapter": (
        Annotated[
            str | None,
            option(
                "--adapter",
                metavar="FOLDER",
                panel=MODEL,
                about="A LoRA adapter, as peft writes it, to merge into the weights.",
            ),
        ],
        None,
    ),
    "storage": (
        Annotated[
            Literal["auto", "plain", "packed"],
            option(
                "--storage",
                metavar="auto|plain|packed",
                panel=MODEL,
                about="Whether weights are packed for the CPU.",
            ),
        ],
        "auto",
    ),
    "invariant": (
        Annotated[
            bool,
            switch(
                "--invariant",
                panel=MODEL,
                about="Passes of one fixed shape: bit for bit the same tokens, whatever the "
                "drafts.",
            ),
        ],
        False,
    ),
    "trust_remote_code": (
        Annotated[
            bool,
            switch(
                "--trust-remote-code",
                panel=MODEL,
                about="Run Python code that comes with the model.",
            ),
        ],
        False,
    ),
    "allow_pickle": (
        Annotated[
            bool,
            switch(
                "--allow-pickle",
                panel=MODEL,
                about="Load pickled weights if there are no others; that runs any code in them.",
            ),
        ],
        False,
    ),
}
"""The options of `paceline.load`: each with its type and its default."""

_CALL: dict[str, Any] = {
    "drafter": Annotated[
        str | None, _shared("drafter", autocompletion=lambda: plugins.names("drafter"))
    ],
    "num_draft_tokens": Annotated[Any, _shared("num_draft_tokens", parser=draft_length)],
    "controller": Annotated[
        str | None, _shared("controller", autocompletion=lambda: plugins.names("controller"))
    ],
    "controller_options": Annotated[list[str] | None, _shared("controller_options")],
    "verify": Annotated[
        str | None, _shared("verify", autocompletion=lambda: plugins.names("verifier"))
    ],
    "verify_options": Annotated[list[str] | None, _shared("verify_options")],
    "draft_model": Annotated[str | None, _shared("draft_model", autocompletion=model_names)],
    "draft_head": Annotated[str | None, _shared("draft_head")],
    "draft_storage": Annotated[
        Literal["auto", "plain", "packed", "int8", "int4"] | None, _shared("draft_storage")
    ],
    "draft_head_tokens": Annotated[Any, _shared("draft_head_tokens", parser=head_tokens)],
    "drafter_options": Annotated[list[str] | None, _shared("drafter_options")],
    "settings": Annotated[Path | None, _shared("settings")],
    "temperature": Annotated[float, _shared("temperature")],
    "top_k": Annotated[int | None, _shared("top_k")],
    "top_p": Annotated[float | None, _shared("top_p")],
    "min_p": Annotated[float | None, _shared("min_p")],
    "repetition_penalty": Annotated[float | None, _shared("repetition_penalty")],
    "presence_penalty": Annotated[float, _shared("presence_penalty")],
    "frequency_penalty": Annotated[float, _shared("frequency_penalty")],
    "seed": Annotated[int | None, _shared("seed")],
    "max_tokens": Annotated[int, _shared("max_tokens")],
    "min_tokens": Annotated[int, _shared("min_tokens")],
    "stop": Annotated[list[str] | None, _shared("stop")],
    "logprobs": Annotated[int | None, _shared("logprobs")],
    "trace": Annotated[Path | None, _shared("trace")],
    "tools": Annotated[Path | None, _shared("tools")],
    "chat_template_kwargs": Annotated[list[str] | None, _shared("chat_template_kwargs")],
    "continue_final_message": Annotated[bool, _shared("continue_final_message")],
}
"""The options of a call that commands take; their defaults stand in the table of all interfaces."""

LOADED = tuple(_LOADING)
"""How the model is loaded."""

DRAFT = ("draft_model", "draft_head", "draft_storage", "draft_head_tokens")
"""What drafts, if it is a model or a head."""

DRAFTED = (
    "drafter",
    "num_draft_tokens",
    "controller",
    "controller_options",
    "verify",
    "verify_options",
    *DRAFT,
    "drafter_options",
    "settings",
)
"""How drafts are made and verified."""

DISTRIBUTION = (
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
)
"""The distribution that tokens are drawn from."""

SAMPLED = (*DISTRIBUTION, "seed")
"""How a token is drawn: fields of `SamplingParams`."""

CHAT = ("tools", "chat_template_kwargs", "continue_final_message")
"""What a chat template receives in addition to the messages."""


def without_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """The options, except those that were left out and are set by the model's generation config.

    >>> without_defaults({"temperature": 0.7, "top_k": None, "top_p": 0.9, "seed": None})
    {'temperature': 0.7, 'top_p': 0.9, 'seed': None}
    """
    return {name: value for name, value in given.items() if value is not None or name not in TAKEN}


def pop(shared: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """A part of the options that a command received, which are then without it.

    >>> shared = {"device": "cuda", "seed": 3}
    >>> pop(shared, ["device"]), shared
    ({'device': 'cuda'}, {'seed': 3})
    """
    return {name: shared.pop(name) for name in names}


def default(name: str) -> Any:
    """What an option is if it is left out, None if the model's own settings then decide.

    >>> default("storage"), default("max_tokens"), default("top_k")
    ('auto', 256, None)
    """
    if name in _LOADING:
        return _LOADING[name][1]
    return None if name in TAKEN else TABLE[name].default


def are_given(shared: Mapping[str, Any]) -> bool:
    """Whether an option that several commands take is other than its default.

    >>> are_given({"storage": "auto", "drafter": None}), are_given({"storage": "plain"})
    (False, True)
    """
    return any(value != default(name) for name, value in shared.items())


def form(name: str) -> Any:
    """The type of an option, with its spelling and meaning."""
    return _LOADING[name][0] if name in _LOADING else _CALL[name]


def takes(
    *names: str, before: str | None = None, **defaults: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options that others have too; it receives them by name, as its first argument.

    Args:
        names: of options of `paceline.load` (`LOADED`) or of a call.
        before: the parameter of the command before which the help lists them; None is last.
        defaults: the command's own defaults, if different.

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
                default=defaults.get(name, default(name)),
                annotation=form(name),
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
