"""The options of `paceline bench`, some of which other commands of the workbench share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

_PROMPTS, _RUN, _OUTPUT = "Prompts", "Run", "Output"

PromptsFile = Annotated[
    str,
    typer.Option(
        "--prompts",
        metavar="FILE",
        rich_help_panel=_PROMPTS,
        help="JSON lines with turns, prompt or messages, and category; or plain text, one prompt "
        "per line. - is standard input.",
    ),
]
Categories = Annotated[
    str | None,
    typer.Option(
        "--categories",
        metavar="A,B",
        rich_help_panel=_PROMPTS,
        help="Only prompts of these categories.",
    ),
]
PerCategory = Annotated[
    int | None,
    typer.Option(
        "--per-category",
        metavar="N",
        min=1,
        rich_help_panel=_PROMPTS,
        help="The first N prompts of each category.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(
        "--limit",
        metavar="N",
        min=1,
        rich_help_panel=_PROMPTS,
        help="At most N prompts, round-robin over categories.",
    ),
]
Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        metavar="METHOD",
        rich_help_panel="Drafting",
        help="A drafter and settings, as in ngram,k=2,4 or model,draft=NAME,k=5 or "
        "ngram+model,k=auto; several values make several methods. Repeatable. Plain decoding is "
        "always in.",
    ),
]
Repeats = Annotated[
    int,
    typer.Option(
        "--repeats",
        metavar="N",
        min=1,
        rich_help_panel=_RUN,
        help="Runs of each method on each prompt.",
    ),
]
Markdown = Annotated[
    Path | None,
    typer.Option(
        "--markdown", metavar="FILE", rich_help_panel=_OUTPUT, help="Write the report as Markdown."
    ),
]
Html = Annotated[
    Path | None,
    typer.Option(
        "--html",
        metavar="FILE",
        rich_help_panel=_OUTPUT,
        help="Write the report as one HTML file, with plots.",
    ),
]
SaveAnswers = Annotated[
    Path | None,
    typer.Option(
        "--save-answers",
        metavar="FILE",
        rich_help_panel=_OUTPUT,
        help="Write the answers of plain decoding, for `paceline replay`.",
    ),
]
Seed = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        rich_help_panel="Sampling",
        help="Seed for the first prompt; each prompt has its own, the same for every method.",
    ),
]
