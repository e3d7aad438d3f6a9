"""What every command of `paceline train` does with its options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from paceline.cli import interrupts, terminal, threads
from paceline.cli.bench import INTERRUPTED
from paceline.cli.calls import DEFAULT_MODEL, print_written, uses_chat
from paceline.cli.train_options import Common
from paceline.cli.train_view import progress_view, sentences
from paceline.errors import InvalidInput, MissingExtra
from paceline.workbench.workload import read_items

if TYPE_CHECKING:
    from collections.abc import Sequence

    from paceline.generate.api import LanguageModel
    from paceline.train.prompts import Prompt
    from paceline.train.result import Trained
    from paceline.train.settings import RunFolder, Settings


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
