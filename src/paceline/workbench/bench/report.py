"""The result of a benchmark as a report: verdicts, tables, plots, definitions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.workbench.bench.definitions import DEFINITIONS
from paceline.workbench.bench.parts import acceptance_blocks, predicted_blocks, time_blocks
from paceline.workbench.bench.results import BenchResult
from paceline.workbench.bench.tables import category_blocks, overall_table, prompt_table
from paceline.workbench.bench.verdicts import verdicts
from paceline.workbench.report import Block, Code, Definitions, Report, Section, Table


def report(result: BenchResult, *, plots: bool = True) -> Report:
    """The whole report.

    Args:
        result: the measurements.
        plots: whether to make plots, which needs matplotlib.
    """
    sections = [
        Section("Result", (*verdicts(result), overall_table(result))),
        Section("By category", category_blocks(result, plots=plots)),
        Section("Acceptance", acceptance_blocks(result, plots=plots)),
        Section("Time and memory", time_blocks(result, plots=plots)),
        Section("Predicted and measured", predicted_blocks(result, plots=plots)),
        Section("Prompt by prompt", (prompt_table(result),)),
        Section("Definitions", (Definitions(DEFINITIONS),)),
        Section("How it was measured", about_blocks(result.about)),
    ]
    prompts = len({run.item for run in result.runs})
    return Report(
        f"Paceline bench: {result.about.get('model', 'a model')}",
        f"{len(result.methods) - 1} methods against plain decoding on {prompts} prompts of "
        f"{len(result.categories)} categories, {len(result.runs)} runs.",
        sections,
    )


def terminal_sections(result: BenchResult) -> list[Section]:
    """What the terminal shows: the verdicts and the main tables."""
    return [
        Section("Result", (*verdicts(result), overall_table(result))),
        Section("By category", category_blocks(result, plots=False)),
    ]


def about_blocks(about: Mapping[str, Any]) -> tuple[Block, ...]:
    """Command, environment, options."""
    environment = dict(about.get("environment", {}))
    command = environment.pop("command", None)
    facts = {**environment, **about.get("options", {}), "prompts": about.get("prompts_file")}
    rows = tuple((key, str(value)) for key, value in facts.items() if value is not None)
    blocks: list[Block] = [Code(command)] if command else []
    return (*blocks, Table(("what", "value"), rows, num_names=2))
