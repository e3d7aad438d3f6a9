"""The report of a run: learning curves, acceptance by position, what it was made from."""

from __future__ import annotations

from typing import Any

from paceline.economics import stats
from paceline.environment import environment
from paceline.train.progress import Point, Progress
from paceline.train.result import Trained
from paceline.workbench.report import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Section,
    Table,
    Text,
    figures,
)

MOST_POINTS = 120
"""The number of points into which the losses of all steps are averaged."""

DEFINITIONS = (
    (
        "held-out answers",
        "Answers of the target that were not trained on. The drafter is asked after each round "
        "along them, as in decoding; the target's recorded tokens say what it would have accepted.",
    ),
    (
        "mean acceptance length",
        "Tokens a round, the correction or bonus token included, with greedy chains: plain "
        "decoding is 1.00. Trees are longer.",
    ),
    (
        "acceptance by position",
        "Of the draft tokens at a position that were tested, the share accepted.",
    ),
    (
        "coverage",
        "The share of the tokens of held-out answers that the drafter has in its vocabulary; "
        "acceptance cannot exceed it.",
    ),
    ("loss", "The mean over draft positions, of a step; and by position between measurements."),
)


def report(trained: Trained) -> Report:
    """The whole report; its plots need matplotlib."""
    progress, settings = trained.progress, trained.settings
    assert progress is not None
    sections = [
        Section("Result", _result(trained, progress)),
        Section("Learning curves", _curves(progress)),
        Section("Measurements", (_measurements(progress),)),
        Section("What it learned from", (_data(trained),)),
        Section("Definitions", (Definitions(DEFINITIONS),)),
        Section("How it was trained", (_settings(trained),)),
    ]
    return Report(
        f"Paceline train: {settings.recipe.name} for {settings.model}",
        f"{trained.data['num_answer_tokens']:,} answer tokens, {progress.step:,} steps.",
        sections,
    )


def _result(trained: Trained, progress: Progress) -> tuple[Block, ...]:
    best = progress.best
    if best is None:
        return (Text("The run was stopped before anything was measured."),)
    rates = stats.conditional_acceptance_rate_per_position(best.counts) or ()
    table = Table(
        ("", "acceptance length", *(f"at {n}" for n in range(1, len(rates) + 1))),
        (
            (
                trained.settings.recipe.name,
                f"{best.length:.2f}",
                *("" if rate is None else f"{rate:.2f}" for rate in rates),
            ),
        ),
        caption=f"Held-out answers, greedy chains, after step {best.step:,}.",
    )
    return table, Code(f'{trained.use} --prompt "..."')


def _curves(progress: Progress) -> tuple[Block, ...]:
    width = max(1, len(progress.curve) // MOST_POINTS)
    parts = [progress.curve[at : at + width] for at in range(0, len(progress.curve), width)]
    loss: list[tuple[float, figures.Point]] = [
        (at * width + len(part), (sum(part) / len(part), None, None))
        for at, part in enumerate(parts)
    ]
    length: list[tuple[float, figures.Point]] = [
        (point.step, (point.length, None, None)) for point in progress.points
    ]
    found: list[Block] = [
        _figure("Loss", "loss", {"loss": loss}, "step", "loss"),
        _figure(
            "Acceptance length", "length", {"held-out answers": length}, "step", "tokens a round"
        ),
    ]
    rates: dict[str, list[tuple[float, figures.Point]]] = {}
    for place in range(max((len(_rates(point)) for point in progress.points), default=0)):
        rates[f"at {place + 1}"] = [
            (float(point.step), (rate, None, None))
            for point in progress.points
            if place < len(_rates(point)) and (rate := _rates(point)[place]) is not None
        ]
    if rates:
        found.append(
            _figure("Acceptance by position", "position", rates, "step", "acceptance, if tested")
        )
    return tuple(found)


def _figure(
    title: str,
    key: str,
    values: dict[str, list[tuple[float, figures.Point]]],
    x_label: str,
    y_label: str,
) -> Figure:
    canvas = figures.lines(values, x_label=x_label, y_label=y_label, whole_numbers=True)
    return Figure(title, figures.inline_svg(canvas, key, f"{title} by {x_label}"))


def _measurements(progress: Progress) -> Table:
    columns = max((len(point.losses) for point in progress.points), default=0)
    places = range(1, columns + 1)
    return Table(
        (
            "step",
            "acceptance length",
            *(f"accepted at {n}" for n in places),
            *(f"loss at {n}" for n in places),
        ),
        tuple(
            (
                f"{point.step:,}",
                f"{point.length:.3f}",
                *_padded(_rates(point), columns),
                *_padded(point.losses, columns),
            )
            for point in progress.points
        ),
    )


def _rates(point: Point) -> tuple[float | None, ...]:
    return stats.conditional_acceptance_rate_per_position(point.counts) or ()


def _padded(values: tuple[float | None, ...], columns: int) -> list[str]:
    shown = ["" if value is None else f"{value:.3f}" for value in values]
    return shown + [""] * (columns - len(shown))


def _data(trained: Trained) -> Table:
    data, words = trained.data, trained.vocabulary
    facts: dict[str, Any] = {
        "answer tokens": f"{data['num_answer_tokens']:,}",
        "prompt tokens": f"{data['num_prompt_tokens']:,}",
        "sequences": f"{data['num_sequences']:,}",
        "held out": f"{data['num_held_out']:,}",
        "bytes on the disk": f"{data['num_bytes']:,}",
        "capture ended by": data["ended"],
        **{f"prompts thrown out: {why}": f"{n:,}" for why, n in data["thrown_out"].items()},
    }
    if words is not None:
        facts["draft vocabulary"] = f"{words.size:,}"
        facts["coverage"] = f"{words.coverage:.2%}"
    return _table(facts)


def _settings(trained: Trained) -> Table:
    found = trained.settings.to_json()
    flat = {**{k: v for k, v in found.items() if not isinstance(v, dict)}}
    for part in ("sampling", "head", "training"):
        flat |= {f"{part}: {name}": value for name, value in found[part].items()}
    assert trained.progress is not None
    flat["seconds of training"] = f"{trained.progress.seconds:.0f}"
    return _table({**environment(), **flat})


def _table(facts: dict[str, Any]) -> Table:
    rows = tuple((name, str(value)) for name, value in facts.items() if value not in (None, [], ()))
    return Table(("what", "value"), rows, num_names=2)
