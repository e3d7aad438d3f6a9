"""`paceline tune`: search for drafter settings on a model, and keep them for later calls."""

from __future__ import annotations

from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options, terminal, threads
from paceline.cli.calls import DEFAULT_MODEL, uses_chat
from paceline.cli.counting import steps
from paceline.cli.options import option
from paceline.drafting.tuned import tuned_file, write_tuned
from paceline.errors import MissingExtra
from paceline.workbench.workload import read_items, select

if TYPE_CHECKING:
    from paceline.workbench.tune import Costs, Found

app = typer.Typer(no_args_is_help=True)

DEFAULT_PROMPTS = 4
DEFAULT_MAX_TOKENS = 64
DEFAULT_NUM_DRAFT_TOKENS = 8
DEFAULT_TRIALS = 300

_WHAT, _HOW_MUCH, _OUTPUT = "What to tune", "How much", "Output"


@app.callback()
def tune() -> None:
    """Search for settings of a drafter on a model, and keep them."""


@app.command("layer-skip")
@options.takes(*options.LOADED, before="raw")
def layer_skip(
    shared: dict[str, Any],
    prompts: Annotated[
        Path,
        option(
            "--prompts",
            panel=_WHAT,
            metavar="FILE",
            about="Typical prompts: JSON lines with turns, prompt or messages, or plain "
            "text, one per line; - is standard input.",
        ),
    ],
    limit: Annotated[
        int,
        option(
            "--limit",
            panel=_WHAT,
            metavar="N",
            min=1,
            about="At most N prompts, round-robin over categories.",
        ),
    ] = DEFAULT_PROMPTS,
    model: options.Model = DEFAULT_MODEL,
    raw: options.Raw = False,
    max_tokens: Annotated[
        int,
        option(
            "--max-tokens",
            panel=_HOW_MUCH,
            metavar="N",
            min=1,
            about="The maximum length of the answers that sets are tried on, in tokens.",
        ),
    ] = DEFAULT_MAX_TOKENS,
    num_draft_tokens: Annotated[
        int,
        option(
            "--num-draft-tokens",
            "-k",
            panel=_HOW_MUCH,
            metavar="N",
            min=1,
            about="The longest draft to plan for.",
        ),
    ] = DEFAULT_NUM_DRAFT_TOKENS,
    trials: Annotated[
        int,
        option("--trials", panel=_HOW_MUCH, metavar="N", min=1, about="Sets of layers to try."),
    ] = DEFAULT_TRIALS,
    seed: Annotated[
        int, option("--seed", panel=_HOW_MUCH, metavar="N", min=0, about="Seed for the search.")
    ] = 0,
    output: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            panel=_OUTPUT,
            metavar="FILE",
            about="Write the settings here, for --drafter-option tuned=FILE. By default they are "
            "kept in the cache folder, where layer-skip finds them by the model's name.",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Find the layers that a draft can skip, by Bayesian optimisation.

    Ctrl-C ends the search and keeps the best set so far.
    """
    if find_spec("optuna") is None:  # checked first, before any work is done
        raise MissingExtra.needed("tune", "searches for settings")
    items = select(read_items(prompts), limit=limit)
    threads.give_way_where_busy()
    with terminal.progress(f"loading {model}") as progress:
        import paceline
        from paceline.workbench import tune as search
        from paceline.workbench.tune.evaluate import layered

        with terminal.transformers_is_quiet():
            loaded = paceline.load(model, progress=progress, **shared)
        target = layered(loaded)
    chat = uses_chat(loaded.tokenizer, raw=raw)
    with steps() as progress:
        samples = search.record(
            loaded,
            [item.as_prompt(chat=chat) for item in items],
            max_tokens,
            num_draft_tokens,
            progress,
        )
        progress(0, 1, "timing the layers")
        costs = search.measure_costs(target, samples[0], num_draft_tokens)
        progress(1, 1, "timing the layers")
        slot = target.open(1)
        from paceline.drafting.self_draft import layers_of  # it imports torch

        num_layers = layers_of(target.view(slot), "layer-skip").num_layers
        target.close(slot)
        found = search.search(
            lambda skip: search.prefix_rates(target, samples, skip, num_draft_tokens),
            costs,
            num_layers,
            trials=trials,
            seed=seed,
            progress=progress,
        )
    file = tuned_file("layer-skip", loaded.name) if output is None else output
    settings = to_json(found, costs, loaded.name, num_layers, len(samples))
    write_tuned(file, settings)
    if as_json:
        terminal.print_json({**settings, "file": str(file)})
        return
    console = terminal.out()
    for line in sentences(found, num_layers):
        console.print(line, soft_wrap=True)
    console.print(f"Kept in {file}.", soft_wrap=True)


def to_json(
    found: Found, costs: Costs, model: str, num_layers: int, num_prompts: int
) -> dict[str, Any]:
    """The settings, and how they were found."""
    best = found.best
    return {
        "drafter": "layer-skip",
        "model": model,
        "num_layers": num_layers,
        "attention": sorted(best.skip.attention),
        "mlp": sorted(best.skip.mlp),
        "predicted_speedup": best.speedup,
        "num_draft_tokens": best.num_draft_tokens,
        "draft_cost": best.cost,
        "acceptance_rate_per_position": list(best.rates),
        "costs_seconds": asdict(costs),
        "num_prompts": num_prompts,
        "trials": found.trials,
        "interrupted": found.interrupted,
    }


def sentences(found: Found, num_layers: int) -> list[str]:
    """The result, in words."""
    best = found.best
    lines = [
        f"{'Stopped after' if found.interrupted else 'Tried'} {found.trials} sets of the "
        f"{2 * num_layers} parts of {num_layers} layers.",
        f"Best: skip the attention of layers {_listed(best.skip.attention)} and the feed-forward "
        f"parts of layers {_listed(best.skip.mlp)}.",
        f"A draft token then costs {best.cost:.2f} target passes; the first is accepted "
        f"{best.rates[0]:.0%} of the time.",
    ]
    gain = f"{best.speedup:.2f} times plain decoding with k = {best.num_draft_tokens}"
    if best.speedup > 1:
        return [*lines, f"Predicted: {gain}."]
    return [
        *lines,
        f"Predicted: {gain}. No set that was tried pays on this model and machine: decode plainly, "
        "or with another drafter.",
    ]


def _listed(layers: frozenset[int]) -> str:
    return ", ".join(map(str, sorted(layers))) or "none"
