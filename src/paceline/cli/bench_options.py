"""The options of `paceline bench`, some of which other commands of the workbench share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from paceline.cli.options import option

_PROMPTS, _RUN, _OUTPUT = "Prompts", "Run", "Output"

PromptsFile = Annotated[
    str,
    option(
        "--prompts",
        metavar="FILE",
        panel=_PROMPTS,
        about="JSON lines with turns, prompt or messages, and category; or plain text, one prompt "
        "per line. - is standard input.",
    ),
]
Categories = Annotated[
    Any,
    option(
        "--categories",
        metavar="A,B",
        parser=lambda text: text.split(","),
        panel=_PROMPTS,
        about="Only prompts of these categories.",
    ),
]
PerCategory = Annotated[
    int | None,
    option(
        "--per-category",
        metavar="N",
        min=1,
        panel=_PROMPTS,
        about="The first N prompts of each category.",
    ),
]
Limit = Annotated[
    int | None,
    option(
        "--limit",
        metavar="N",
        min=1,
        panel=_PROMPTS,
        about="At most N prompts, round-robin over categories.",
    ),
]
Methods = Annotated[
    list[str] | None,
    option(
        "--method",
        metavar="METHOD",
        panel="Drafting",
        about="A drafter and settings, as in ngram,k=2,4 or model,draft=NAME,k=5 or "
        "ngram+model,k=auto; several values make several methods. Repeatable. Plain decoding is "
        "always in.",
    ),
]
Repeats = Annotated[
    int,
    option(
        "--repeats",
        metavar="N",
        min=1,
        panel=_RUN,
        about="Runs of each method on each prompt.",
    ),
]
Markdown = Annotated[
    Path | None,
    option("--markdown", metavar="FILE", panel=_OUTPUT, about="Write the report as Markdown."),
]
Html = Annotated[
    Path | None,
    option(
        "--html",
        metavar="FILE",
        panel=_OUTPUT,
        about="Write the report as one HTML file, with plots.",
    ),
]
SaveAnswers = Annotated[
    Path | None,
    option(
        "--save-answers",
        metavar="FILE",
        panel=_OUTPUT,
        about="Write the answers of plain decoding, for `paceline replay`.",
    ),
]
Seed = Annotated[
    int,
    option(
        "--seed",
        metavar="N",
        panel="Sampling",
        about="Seed for the first prompt; each prompt has its own, the same for every method.",
    ),
]
