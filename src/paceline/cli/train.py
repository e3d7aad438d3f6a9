"""`paceline train`: a drafter trained on the target's own answers, from nothing but the model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import interrupts, options, terminal, threads
from paceline.cli.bench import INTERRUPTED
from paceline.cli.calls import DEFAULT_MODEL, print_written, uses_chat
from paceline.cli.train_options import HEAD, Common, number, takes_common
from paceline.cli.train_view import progress_view, sentences
from paceline.errors import InvalidInput, MissingExtra
from paceline.workbench.workload import read_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.generate.api import LanguageModel
    from paceline.train.prompts import Prompt
    from paceline.train.result import Trained
    from paceline.train.settings import RunFolder, Settings

app = typer.Typer(no_args_is_help=True)


@app.callback()
def train() -> None:
    """Train a drafter for a model, from nothing but the model.

    The model writes prompts (or takes yours) and answers them; its hidden states are kept as it
    does, and a small network learns from them what comes next. It ends by itself; Ctrl-C keeps what
    there is, and --resume goes on.

    On two cores, with --minutes 60: SmolLM2-135M about 300,000 answer tokens, Qwen2.5-0.5B 150,000,
    a model of 1.5B 50,000. On the disk, a token takes 2 bytes for each component of the hidden
    state: 100,000 tokens take 115 MB for SmolLM2-135M (576), 180 MB for a model of 0.5B (896) and
    310 MB for one of 1.5B (1536); `eagle` keeps four states and takes four times as much. Prompts
    count too.
    """


def medusa(
    common: Common,
    heads: Annotated[
        int | None,
        number("--heads", panel=HEAD, about="Tokens that it drafts. Default: 4.", high=16),
    ] = None,
    layers: Annotated[
        int | None,
        number("--layers", panel=HEAD, about="Residual blocks of each head. Default: 1.", high=8),
    ] = None,
) -> None:
    """Train Medusa heads, each of which guesses one of the next tokens from the last state.

    The cheapest kind to train and to run: a head is a small block on the state that the model's own
    output head reads. They are written in Medusa's format.
    """
    run("medusa", common, {"num_heads": heads, "num_layers": layers})


def eagle(
    common: Common,
    steps: Annotated[
        int | None,
        number(
            "--steps", panel=HEAD, about="Tokens that it drafts in training. Default: 3.", high=16
        ),
    ] = None,
) -> None:
    """Train an EAGLE-3 head, a layer that reads the states of three layers and its own output.

    It accepts more than Medusa's heads, and costs more: a pass for each drafted token, and four
    times the space for the states. It is written in the speculators format, which vLLM serves.
    """
    run("eagle", common, {"num_steps": steps, "seed": common.seed})


def hydra(
    common: Common,
    heads: Annotated[
        int | None,
        number("--heads", panel=HEAD, about="Tokens that it drafts. Default: 4.", high=16),
    ] = None,
    layers: Annotated[
        int | None,
        number("--layers", panel=HEAD, about="Residual blocks of a head. Default: 1.", high=8),
    ] = None,
) -> None:
    """Train Hydra heads, which read the final state and the tokens drafted before.

    They accept more than Medusa's heads, which do not see what was drafted; a head is run after
    the other, each a product or two.
    """
    run("hydra", common, {"num_heads": heads, "num_layers": layers})


def blockwise(
    common: Common,
    heads: Annotated[
        int | None,
        number(
            "--heads",
            panel=HEAD,
            about="Tokens that it drafts, one less than a block. Default: 4.",
            high=16,
        ),
    ] = None,
    width: Annotated[
        int | None,
        number(
            "--width",
            panel=HEAD,
            about="Width of the layer for each token. Default: that of the model's states.",
        ),
    ] = None,
) -> None:
    """Train blockwise heads: one feed-forward layer gives the states of a block of tokens.

    The heads of Stern et al. (2018). Output rows are always the model's own.
    """
    run("blockwise", common, {"num_heads": heads, "width": width, "seed": common.seed})


def mtp(
    common: Common,
    steps: Annotated[
        int | None,
        number(
            "--steps", panel=HEAD, about="Tokens that it drafts in training. Default: 3.", high=16
        ),
    ] = None,
) -> None:
    """Train a multi-token prediction module, a layer on the final state and the next token.

    Like an EAGLE head that reads one state. It shares the model's embedding and whole output head,
    and so has neither --draft-vocab nor --own-rows; its --loss is cross-entropy by default.
    """
    run("mtp", common, {"num_steps": steps, "seed": common.seed})


def dflash(
    common: Common,
    block: Annotated[
        int | None,
        number(
            "--block",
            panel=HEAD,
            about="Rows of a block; it drafts one token less. Default: 8.",
            low=2,
            high=32,
        ),
    ] = None,
    layers: Annotated[
        int | None,
        number("--layers", panel=HEAD, about="Layers of the head. Default: 2.", high=8),
    ] = None,
) -> None:
    """Train a DFlash head, which drafts a block of tokens in one pass of a few layers.

    It reads the states that an eagle head reads. Output rows are always the model's own.
    """
    settings = {"block_size": block, "num_layers": layers, "seed": common.seed}
    run("dflash", common, settings)


for _command in (medusa, hydra, eagle, mtp, dflash, blockwise):
    app.command(help=options.paragraphs(_command))(takes_common(_command))


def run(kind: str, common: Common, own: dict[str, Any]) -> None:
    """Train a drafter of a kind; None stands for options that were left out."""
    threads.give_way_where_busy()
    with terminal.progress("starting"):
        from paceline.train.run import train as run_training
        from paceline.train.settings import RunFolder

    from paceline.workbench.report.files import Outputs

    Outputs({"--html": common.html})  # one that cannot be written is told before the work
    folder, trust = RunFolder(common.output), common.trust
    settings = settings_of(kind, folder, common, own)
    if common.raw is not None and settings.prompts is None:
        raise InvalidInput(
            f"{'--raw' if common.raw else '--chat'} is about the prompts of a file; give one with "
            "--prompts FILE, or leave it out"
        )
    has_answers = settings.data is not None
    items = None if settings.prompts is None or has_answers else read_items(settings.prompts)
    excluded = [] if has_answers else excluded_texts(settings)

    def load() -> LanguageModel:
        with terminal.progress(f"loading {settings.model}") as tell:
            import paceline

            with terminal.transformers_is_quiet():
                return paceline.load(settings.model, dtype=settings.dtype, progress=tell, **trust)

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
            resume=common.resume,
            minutes=common.minutes,
            stops=stops,
            tell=tell,
        )
    show(trained, common.html, as_json=common.as_json)


def settings_of(kind: str, folder: RunFolder, common: Common, own: dict[str, Any]) -> Settings:
    """The settings of a run: what was given, and for the rest the defaults, or those it had."""
    from dataclasses import replace

    from paceline.train.loop import Plan
    from paceline.train.recipes import RECIPES
    from paceline.train.settings import RunFolder, Settings

    given, sampling = _without_none(common.given), _without_none(common.sampling)
    head, plan = _without_none({**own, **common.head}), _without_none(common.plan)
    if head.get("draft_vocab") == "all":
        head["draft_vocab"] = None
    if not common.resume:
        recipe = RECIPES[kind](**head)
        usual: dict[str, Any] = {
            "recipe": recipe,
            "plan": Plan(learning_rate=recipe.learning_rate),
        }
        if common.data is None:
            settings = Settings(**{"model": DEFAULT_MODEL, **usual, **given})
        else:
            settings = replace(RunFolder(common.data).settings(to_resume=False), **usual, **given)
    else:
        settings = folder.settings()
        if settings.recipe.name != kind:
            raise InvalidInput(
                f"the run in {folder.path} trains {settings.recipe.name!r}; resume it with "
                f"`paceline train {settings.recipe.name}`"
            )
        recipe = RECIPES[kind](**{**settings.recipe.to_json(), **head})
        settings = replace(settings, recipe=recipe, **given)
    return replace(
        settings,
        sampling={**settings.sampling, **sampling},
        plan=replace(settings.plan, **plan),
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
