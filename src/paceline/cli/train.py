"""`paceline train`: a drafter trained on the target's own answers, from nothing but the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from paceline.cli import interrupts, options, terminal, threads
from paceline.cli.bench import INTERRUPTED
from paceline.cli.calls import DEFAULT_MODEL, print_written, uses_chat
from paceline.cli.train_view import progress_view, sentences
from paceline.errors import InvalidInput, MissingExtra
from paceline.workbench.workload import read_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.generate.api import LanguageModel
    from paceline.train.prompts import Prompt
    from paceline.train.run import Trained
    from paceline.train.settings import RunFolder, Settings

app = typer.Typer(no_args_is_help=True)

TEXT, ANSWERS, HEAD, TRAINING, RUN = "Prompts", "Answers", "Drafter", "Training", "Run"


def _option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


def _number(*names: str, panel: str, about: str, low: int = 1, high: int | None = None) -> Any:
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
Tokens = Annotated[
    int | None, _number("--tokens", panel=ANSWERS, about="Answer tokens to learn from.")
]
MaxTokens = Annotated[
    int | None, _number("--max-tokens", panel=ANSWERS, about="The longest answer.", low=2)
]
Batch = Annotated[
    int | None, _number("--batch", panel=ANSWERS, about="Answers that are decoded at once.")
]
Temperature = Annotated[
    float | None,
    _option(
        "--temperature",
        panel=ANSWERS,
        metavar="T",
        min=0.0,
        about="That at which the model will be served; 0 is greedy.",
    ),
]
TopK = Annotated[int | None, _number("--top-k", panel=ANSWERS, about="See `generate`.", low=0)]
TopP = Annotated[
    float | None, _option("--top-p", panel=ANSWERS, metavar="P", about="See `generate`.")
]
Seed = Annotated[
    int | None,
    _number("--seed", panel=RUN, about="Seed of prompts, answers and training.", low=0),
]
Epochs = Annotated[
    int | None, _number("--epochs", panel=TRAINING, about="Passes over the answers, at most.")
]
BatchTokens = Annotated[
    int | None, _number("--batch-tokens", panel=TRAINING, about="Answer tokens of a step.")
]
LearningRate = Annotated[
    float | None,
    _option("--learning-rate", panel=TRAINING, metavar="X", about="The highest of the run."),
]
Vocab = Annotated[
    Any,
    _option(
        "--draft-vocab",
        panel=HEAD,
        metavar="N|all",
        parser=draft_vocab,
        about="The most frequent tokens of the answers, which alone can be proposed.",
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


@app.callback()
def train() -> None:
    """Train a drafter for a model, from nothing but the model.

    The model writes prompts (or takes yours) and answers them; its hidden states are kept as it
    does, and a small network learns from them what comes next. It ends by itself; Ctrl-C keeps what
    there is, and --resume goes on.

    On two cores, with --minutes 60: SmolLM2-135M about 300,000 answer tokens, Qwen2.5-0.5B 150,000,
    a model of 1.5B 50,000. On the disk, a token takes 2 bytes for each component of the hidden
    state: 100,000 tokens take 115 MB for SmolLM2-135M (576), 180 MB for a model of 0.5B (896) and
    310 MB for one of 1.5B (1536); prompts count too.
    """


@app.command("medusa")
def medusa(
    output: Output,
    model: Annotated[str | None, options.Model.__metadata__[0]] = None,
    dtype: Annotated[
        Literal["auto", "float32", "bfloat16", "float16"] | None, options.Dtype.__metadata__[0]
    ] = None,
    trust_remote_code: options.TrustRemoteCode = False,
    allow_pickle: options.AllowPickle = False,
    prompts: PromptFile = None,
    exclude: Exclude = None,
    raw: Annotated[
        bool | None,
        _option(
            "--raw/--chat",
            panel=TEXT,
            metavar="",
            about="Whether prompts of a file are continued as they are, without the chat template.",
        ),
    ] = None,
    tokens: Tokens = None,
    max_tokens: MaxTokens = None,
    batch: Batch = None,
    temperature: Temperature = None,
    top_k: TopK = None,
    top_p: TopP = None,
    heads: Annotated[
        int | None, _number("--heads", panel=HEAD, about="Tokens that it drafts.", high=16)
    ] = None,
    layers: Annotated[
        int | None,
        _number("--layers", panel=HEAD, about="Residual blocks of each head.", high=8),
    ] = None,
    draft_vocab: Vocab = None,
    own_rows: Annotated[
        bool | None,
        _option(
            "--own-rows/--shared-rows",
            panel=HEAD,
            metavar="",
            about="Whether each head trains output rows of its own, a large file; otherwise all "
            "use the target's.",
        ),
    ] = None,
    loss: Annotated[
        Literal["cross-entropy", "divergence"] | None,
        _option(
            "--loss",
            panel=TRAINING,
            metavar="cross-entropy|divergence",
            about="Compare with the tokens of the answers, or with the target's distributions.",
        ),
    ] = None,
    epochs: Epochs = None,
    batch_tokens: BatchTokens = None,
    learning_rate: LearningRate = None,
    seed: Seed = None,
    minutes: Minutes = None,
    resume: Resume = False,
    html: Html = None,
    as_json: options.AsJson = False,
) -> None:
    """Train Medusa heads, each of which guesses one of the next tokens from the last state.

    The cheapest kind to train and to run: a head is a small block on the state that the model's own
    output head reads. They are written in Medusa's format.
    """
    given = {
        "model": model,
        "dtype": dtype,
        "raw": raw,
        "prompts": None if prompts is None else str(prompts),
        "exclude": None if not exclude else tuple(map(str, exclude)),
        "tokens": tokens,
        "max_tokens": max_tokens,
        "batch": batch,
        "seed": seed,
    }
    sampling = {"temperature": temperature, "top_k": top_k, "top_p": top_p}
    plan = {"epochs": epochs, "batch_tokens": batch_tokens, "learning_rate": learning_rate}
    head = {"num_heads": heads, "num_layers": layers, "own_rows": own_rows, "loss": loss}
    if draft_vocab is not None:
        head["draft_vocab"] = draft_vocab
    run(
        "medusa",
        output,
        given,
        sampling,
        head,
        plan,
        trust={"trust_remote_code": trust_remote_code, "allow_pickle": allow_pickle},
        minutes=minutes,
        resume=resume,
        html=html,
        as_json=as_json,
    )


def run(
    kind: str,
    output: Path,
    given: dict[str, Any],
    sampling: dict[str, Any],
    head: dict[str, Any],
    plan: dict[str, Any],
    *,
    trust: dict[str, bool],
    minutes: float | None,
    resume: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Train a drafter of a kind; None stands for options that were left out."""
    threads.give_way_where_busy()
    with terminal.progress("starting"):
        from paceline.train.run import train as run_training
        from paceline.train.settings import RunFolder

    folder = RunFolder(output)
    settings = settings_of(kind, folder, given, sampling, head, plan, resume=resume)
    items = None if settings.prompts is None else read_items(settings.prompts)
    excluded = excluded_texts(settings)

    def load() -> LanguageModel:
        with terminal.progress(f"loading {settings.model}") as tell:
            import paceline

            with terminal.transformers_is_quiet():
                return paceline.load(
                    settings.model,
                    dtype=settings.dtype,
                    progress=tell,
                    trust_remote_code=trust["trust_remote_code"],
                    allow_pickle=trust["allow_pickle"],
                )

    def encoded(model: LanguageModel) -> Sequence[Prompt]:
        from paceline.train.prompts import encode_items

        assert items is not None
        return encode_items(items, model, chat=uses_chat(model.tokenizer, raw=settings.raw))

    with interrupts.asked_to_stop() as stops, progress_view() as tell:
        trained = run_training(
            settings,
            folder,
            load,
            given=None if items is None else encoded,
            excluded=excluded,
            resume=resume,
            minutes=minutes,
            stops=stops,
            tell=tell,
        )
    show(trained, html, as_json=as_json)


def settings_of(
    kind: str,
    folder: RunFolder,
    given: dict[str, Any],
    sampling: dict[str, Any],
    head: dict[str, Any],
    plan: dict[str, Any],
    *,
    resume: bool,
) -> Settings:
    """The settings of a run: what was given, and for the rest the defaults, or those it had."""
    from dataclasses import replace

    from paceline.train.recipes import RECIPES
    from paceline.train.settings import Settings

    given, sampling, head, plan = map(_without_none, (given, sampling, head, plan))
    if head.get("draft_vocab") == "all":
        head["draft_vocab"] = None
    if not resume:
        recipe = RECIPES[kind](**head)
        settings = Settings(recipe=recipe, **{"model": DEFAULT_MODEL, **given})
    else:
        settings = folder.settings()
        if settings.recipe.name != kind:
            raise InvalidInput(
                f"the run in {folder.path} trains {settings.recipe.name!r}; resume it with "
                f"`paceline train {settings.recipe.name}`"
            )
        recipe = RECIPES[kind](**{**settings.recipe.to_json(), **head})
        settings = replace(settings, recipe=recipe, **given)
    seed = {} if "seed" not in given else {"seed": given["seed"]}
    return replace(
        settings,
        sampling={**settings.sampling, **sampling},
        plan=replace(settings.plan, **plan, **seed),
    )


def _without_none(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def excluded_texts(settings: Settings) -> list[str]:
    """The texts of the files to keep unseen."""
    from paceline.train.prompts import texts_of

    return [text for file in settings.exclude for text in texts_of(read_items(file))]


def show(trained: Trained, html: Path | None, *, as_json: bool) -> None:
    """Print what came of a run, and write its report."""
    if trained.progress is not None:
        _write_report(trained, html)
    if as_json:
        terminal.print_json(trained.to_json())
    else:
        for line in sentences(trained):
            terminal.out().print(line, soft_wrap=True)
    if trained.ended == "stopped":
        raise typer.Exit(INTERRUPTED)


def _write_report(trained: Trained, html: Path | None) -> None:
    from paceline.train.report import report
    from paceline.workbench.report import to_html
    from paceline.workbench.report.files import Outputs

    path = trained.folder.path / "report.html" if html is None else html
    content: Callable[[], str] = lambda: to_html(report(trained))  # noqa: E731
    try:
        print_written(Outputs({"--html": path}).write({"--html": content}))
    except MissingExtra as error:
        if html is not None:
            raise
        terminal.note(f"no report was written: {error}")
