"""`paceline models`: the models that are known by name, and how to bring them here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.table import Table

from paceline.cli import options, terminal
from paceline.models.known import KNOWN, KnownModel, fetch, models_folder, place

app = typer.Typer(invoke_without_command=True)


def is_here(model: KnownModel) -> bool:
    """Whether the whole file is there. Its size tells; `fetch` checks what is in it."""
    path = place(model.name)
    return path.is_file() and path.stat().st_size == model.size_bytes


def models_json(models: Iterable[KnownModel]) -> dict[str, Any]:
    """The models as plain JSON values; `path` is null where the model is not downloaded."""
    return {
        "models": [
            {
                "name": model.name,
                "description": model.description,
                "size_bytes": model.size_bytes,
                "licence": model.licence,
                "downloaded": is_here(model),
                "path": str(place(model.name)) if is_here(model) else None,
            }
            for model in models
        ]
    }


def models_table(models: Iterable[KnownModel]) -> Table:
    """The models as a table."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("name", no_wrap=True)
    table.add_column("size", justify="right", no_wrap=True)
    table.add_column("licence", no_wrap=True)
    table.add_column("downloaded")
    table.add_column("what it is")
    for model in models:
        table.add_row(
            model.name,
            terminal.quantity(model.size_bytes),
            model.licence,
            "yes" if is_here(model) else "no",
            model.description,
        )
    return table


@app.callback()
def list_models(ctx: typer.Context, as_json: options.AsJson = False) -> None:
    """List the models known by name, or fetch one."""
    if ctx.invoked_subcommand is not None:
        return
    if as_json:
        terminal.print_json(models_json(KNOWN.values()))
        return
    console = terminal.out()
    console.print(models_table(KNOWN.values()))
    console.print()
    console.print(f"They lie in {models_folder()}.", soft_wrap=True)
    console.print("`paceline models fetch NAME` brings one here; `generate` does so by itself.")


@app.command("fetch")
def fetch_model(
    name: Annotated[
        str, typer.Argument(help="A name from the list.", autocompletion=options.model_names)
    ],
    as_json: options.AsJson = False,
) -> None:
    """Bring a model to this machine, check it, and print where it lies."""
    with terminal.progress(f"fetching {name}") as tell:
        path = fetch(name, progress=tell)
    if as_json:
        terminal.print_json({"name": name, "path": str(path)})
    else:
        terminal.out().print(str(path), soft_wrap=True)
