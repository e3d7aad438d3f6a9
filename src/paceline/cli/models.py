"""`paceline models`: the models known by name, and how to fetch them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Any

import typer
from rich.table import Table

from paceline.cache_folder import cache_folder
from paceline.cli import options, terminal
from paceline.models.kept import Conversion, conversions, remove
from paceline.models.known import KNOWN, KnownModel, fetch, models_folder, place

app = typer.Typer(invoke_without_command=True)


def is_here(model: KnownModel) -> bool:
    """Whether the whole file is there, judged by its size; `fetch` checks its contents."""
    path = place(model.name)
    return path.is_file() and path.stat().st_size == model.size_bytes


def models_json(models: Iterable[KnownModel], kept: Sequence[Conversion]) -> dict[str, Any]:
    """The models as plain JSON values; `path` is null if the model is not downloaded."""
    return {
        "models": [
            {
                "name": model.name,
                "description": model.description,
                "size_bytes": model.size_bytes,
                "licence": model.licence,
                "downloaded": is_here(model),
                "path": str(place(model.name)) if is_here(model) else None,
                "converted_bytes": converted_bytes(model, kept),
            }
            for model in models
        ],
        "converted_bytes": sum(one.size_bytes for one in kept),
        "outdated_bytes": sum(one.size_bytes for one in kept if not one.is_current),
    }


def converted_bytes(model: KnownModel, kept: Iterable[Conversion]) -> int:
    """The disk space of a model's conversions."""
    return sum(one.size_bytes for one in kept if one.sha256 == model.sha256)


def models_table(models: Iterable[KnownModel], kept: Sequence[Conversion]) -> Table:
    """The models as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("downloaded")
    table.add_column("converted", justify="right", no_wrap=True)
    table.add_column("what it is")
    for model in models:
        table.add_row(
            model.name,
            terminal.quantity(model.size_bytes),
            model.licence,
            "yes" if is_here(model) else "no",
            terminal.quantity(size) if (size := converted_bytes(model, kept)) else "-",
            model.description,
        )
    return table


@app.callback()
def list_models(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """List the models known by name, or fetch one."""
    if ctx.invoked_subcommand is not None:
        return
    kept = conversions()
    if as_json:
        terminal.print_json(models_json(KNOWN.values(), kept))
        return
    console = terminal.out()
    console.print(models_table(KNOWN.values(), kept))
    console.print()
    fetched = sum(model.size_bytes for model in KNOWN.values() if is_here(model))
    console.print(f"{terminal.quantity(fetched)} downloaded, in {models_folder()}.", soft_wrap=True)
    if kept:
        console.print(
            f"{terminal.quantity(sum(one.size_bytes for one in kept))} converted, in "
            f"{cache_folder() / 'converted'}: unpacked once, so that the next load is fast.",
            soft_wrap=True,
        )
    if old := sum(one.size_bytes for one in kept if not one.is_current):
        console.print(
            f"{terminal.quantity(old)} of it was made by another version and is not used: "
            "`paceline models clean` deletes that."
        )
    console.print("`paceline models fetch NAME` downloads one; `generate` does so automatically.")


@app.command("fetch")
def fetch_model(
    name: Annotated[
        str, typer.Argument(help="A name from the list.", autocompletion=options.model_names)
    ],
    as_json: options.AsJson = False,
) -> None:
    """Download a model, check it, and print its path."""
    with terminal.progress(f"fetching {name}") as progress:
        path = fetch(name, progress=progress)
    if as_json:
        terminal.print_json({"name": name, "path": str(path)})
    else:
        terminal.out().print(str(path), soft_wrap=True)


@app.command("clean")
def clean(
    everything: Annotated[
        bool,
        typer.Option("--all", help="Also delete those in use; loading makes them again."),
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Delete conversions that another version made. Downloaded models stay."""
    freed = remove(one for one in conversions() if everything or not one.is_current)
    if as_json:
        terminal.print_json({"freed_bytes": freed})
    else:
        terminal.out().print(f"{terminal.quantity(freed)} freed" if freed else "nothing to delete")
