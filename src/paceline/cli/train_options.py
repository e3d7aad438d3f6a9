"""The options of `paceline train` that every kind of drafter has, declared once."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import typer

from paceline.cli import options

TEXT, ANSWERS, HEAD, TRAINING, RUN = "Prompts", "Answers", "Drafter", "Training", "Run"


def _option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


def number(*names: str, panel: str, about: str, low: int = 1, high: int | None = None) -> Any:
    """An option that takes a whole number."""
    return _option(*names, panel=panel, about=about, metavar="N", min=low, max=high)


def draft_vocab(text: str) -> int | Literal["all"]:
    """An integer above 0, or "all".

    >>> draft_vocab("8000"), draft_vocab("all")
    (8000, 'all')
    """
    if text == "all":
        return "all"
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise typer.BadParameter(f"it is 'all' or a whole number of at least 1, not {text!r}")
    return int(text)


Output = Annotated[
    Path,
    _option("--output", "-o", panel=RUN, metavar="FOLDER", about="Where the drafter is written."),
]
Resume = Annotated[
    bool,
    _option(
        "--resume",
        panel=RUN,
        metavar="",
        about="Go on with the run in the folder, with its own settings and the same numbers as "
        "without a break.",
    ),
]
Minutes = Annotated[
    float | None,
    _option(
        "--minutes",
        panel=RUN,
        metavar="N",
        min=0.05,
        about="How long it may take; about half of it goes to the answers.",
    ),
]
PromptFile = Annotated[
    Path | None,
    _option(
        "--prompts",
        panel=TEXT,
        metavar="FILE",
        about="Prompts like those to come: JSON lines with turns, prompt or messages, or plain "
        "text, one a line; - is standard input. Left out, the model writes them itself.",
    ),
]
Exclude = Annotated[
    list[Path] | None,
    _option(
        "--exclude",
        panel=TEXT,
        metavar="FILE",
        about="Prompts that must stay unseen, to be measured on later: what shares eight words in "
        "a row with them is thrown out. Repeatable.",
    ),
]
Data = Annotated[
    Path | None,
    _option(
        "--data",
        panel=ANSWERS,
        metavar="FOLDER",
        about="Learn from the answers that another run has captured there, in place of new ones. "
        "An eagle or dflash run captures what the others read, too.",
    ),
]
Tokens = Annotated[
    int | None,
    number("--tokens", panel=ANSWERS, about="Answer tokens to learn from. Default: 300,000."),
]
MaxTokens = Annotated[
    int | None,
    number("--max-tokens", panel=ANSWERS, about="The longest answer. Default: 256.", low=2),
]
Batch = Annotated[
    int | None,
    number("--batch", panel=ANSWERS, about="Answers that are decoded at once. Default: 16."),
]
Temperature = Annotated[
    float | None,
    _option(
        "--temperature",
        panel=ANSWERS,
        metavar="T",
        min=0.0,
        about="That at which the model will be served; 0 is greedy, the default.",
    ),
]
TopK = Annotated[int | None, number("--top-k", panel=ANSWERS, about="See `generate`.", low=0)]
TopP = Annotated[
    float | None, _option("--top-p", panel=ANSWERS, metavar="P", about="See `generate`.")
]
Seed = Annotated[
    int | None,
    number("--seed", panel=RUN, about="Seed of prompts, answers and training.", low=0),
]
Epochs = Annotated[
    int | None,
    number("--epochs", panel=TRAINING, about="Passes over the answers, at most. Default: 10."),
]
BatchTokens = Annotated[
    int | None,
    number("--batch-tokens", panel=TRAINING, about="Answer tokens of a step. Default: 512."),
]
LearningRate = Annotated[
    float | None,
    _option(
        "--learning-rate",
        panel=TRAINING,
        metavar="X",
        about="The highest of the run. Default: 0.003 for medusa, 0.0001 for parallel, else 0.001.",
    ),
]
Vocab = Annotated[
    Any,
    _option(
        "--draft-vocab",
        panel=HEAD,
        metavar="N|all",
        parser=draft_vocab,
        about="The most frequent tokens of the answers, which alone can be proposed. "
        "Default: 8,000.",
    ),
]
DtypeName = Literal["auto", "float32", "bfloat16", "float16"]
Raw = Annotated[
    bool | None,
    _option(
        "--raw/--chat",
        panel=TEXT,
        metavar="",
        about="Whether prompts of a file are continued as they are, without the chat template.",
    ),
]
OwnRows = Annotated[
    bool | None,
    _option(
        "--own-rows/--shared-rows",
        panel=HEAD,
        metavar="",
        about="Whether output rows are trained too, a larger file; otherwise the target's are used "
        "as they are, the default.",
    ),
]
LossName = Annotated[
    Literal["cross-entropy", "divergence"] | None,
    _option(
        "--loss",
        panel=TRAINING,
        metavar="cross-entropy|divergence",
        about="Compare with the tokens of the answers, or with the target's distributions, "
        "the default.",
    ),
]
Html = Annotated[
    Path | None,
    _option(
        "--html",
        panel="Output",
        metavar="FILE",
        about="Where the report with the learning curves is written; default: report.html in the "
        "folder of the drafter.",
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Common:
    """What was given of the options that all kinds have; None where one was left out."""

    output: Path
    model: str | None
    dtype: str | None
    trust_remote_code: bool
    allow_pickle: bool
    prompts: Path | None
    exclude: list[Path] | None
    raw: bool | None
    data: Path | None
    tokens: int | None
    max_tokens: int | None
    batch: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    draft_vocab: int | Literal["all"] | None
    own_rows: bool | None
    loss: str | None
    epochs: int | None
    batch_tokens: int | None
    learning_rate: float | None
    seed: int | None
    minutes: float | None
    resume: bool
    html: Path | None
    as_json: bool

    @property
    def given(self) -> dict[str, Any]:
        """Its part of `train.settings.Settings`."""
        return {
            "model": self.model,
            "dtype": self.dtype,
            "raw": self.raw,
            "prompts": None if self.prompts is None else str(self.prompts),
            "exclude": None if not self.exclude else tuple(map(str, self.exclude)),
            "data": None if self.data is None else str(self.data),
            "tokens": self.tokens,
            "max_tokens": self.max_tokens,
            "batch": self.batch,
            "seed": self.seed,
        }

    @property
    def sampling(self) -> dict[str, Any]:
        """How answers are drawn."""
        return {"temperature": self.temperature, "top_k": self.top_k, "top_p": self.top_p}

    @property
    def head(self) -> dict[str, Any]:
        """Its part of a recipe."""
        return {"draft_vocab": self.draft_vocab, "own_rows": self.own_rows, "loss": self.loss}

    @property
    def plan(self) -> dict[str, Any]:
        """Its part of `train.loop.Plan`."""
        return {
            "epochs": self.epochs,
            "batch_tokens": self.batch_tokens,
            "learning_rate": self.learning_rate,
            "seed": self.seed,
        }

    @property
    def trust(self) -> dict[str, Any]:
        """What the model's files may do."""
        return {
            "trust_remote_code": self.trust_remote_code,
            "allow_pickle": self.allow_pickle,
        }


_FORMS: dict[str, tuple[Any, Any]] = {
    "output": (Output, ...),
    "model": (Annotated[str | None, get_args(options.Model)[1]], None),
    "dtype": (Annotated[DtypeName | None, get_args(options.form("dtype"))[1]], None),
    "trust_remote_code": (options.form("trust_remote_code"), False),
    "allow_pickle": (options.form("allow_pickle"), False),
    "prompts": (PromptFile, None),
    "exclude": (Exclude, None),
    "raw": (Raw, None),
    "data": (Data, None),
    "tokens": (Tokens, None),
    "max_tokens": (MaxTokens, None),
    "batch": (Batch, None),
    "temperature": (Temperature, None),
    "top_k": (TopK, None),
    "top_p": (TopP, None),
    "draft_vocab": (Vocab, None),
    "own_rows": (OwnRows, None),
    "loss": (LossName, None),
    "epochs": (Epochs, None),
    "batch_tokens": (BatchTokens, None),
    "learning_rate": (LearningRate, None),
    "seed": (Seed, None),
    "minutes": (Minutes, None),
    "resume": (Resume, False),
    "html": (Html, None),
    "as_json": (options.AsJson, False),
}


def takes_common(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options of `Common`, which it receives as its first argument.

    Its own options come first in the help.
    """
    own = list(inspect.signature(command, eval_str=True).parameters.values())[1:]
    keyword = inspect.Parameter.KEYWORD_ONLY
    shared = [
        inspect.Parameter(name, keyword, default=keyword_default(default), annotation=form)
        for name, (form, default) in _FORMS.items()
    ]
    parameters = [*(one.replace(kind=keyword) for one in own), *shared]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        common = Common(**{name: values.pop(name) for name in _FORMS})
        command(common, **values)

    # typer reads both.
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {one.name: one.annotation for one in parameters}
    return run


def keyword_default(default: Any) -> Any:
    """What a signature says of an option that must be given."""
    return inspect.Parameter.empty if default is ... else default
