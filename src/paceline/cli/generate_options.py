"""The options of `paceline generate` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from paceline.cli.options import option, switch
from paceline.generate.option_table import DRAFTING, OUTPUT, PROMPT, SAMPLING

Prompt = Annotated[
    str | None,
    option(
        "--prompt",
        "-p",
        panel=PROMPT,
        metavar="TEXT",
        about="The prompt. Without it and --messages, standard input is read.",
    ),
]
Messages = Annotated[
    Path | None,
    option(
        "--messages",
        panel=PROMPT,
        metavar="FILE",
        about="A JSON file of chat messages: a list of objects with role and content.",
    ),
]
JsonSchema = Annotated[
    Path | None,
    option(
        "--json-schema",
        panel=SAMPLING,
        metavar="FILE",
        about="A JSON schema that the answer satisfies; drafts change nothing.",
    ),
]
Reference = Annotated[
    list[Path] | None,
    option(
        "--reference",
        panel=DRAFTING,
        metavar="FILE",
        about="A text that the answer may quote, for ngram and reference. Repeatable.",
    ),
]
Prediction = Annotated[
    Path | None,
    option(
        "--prediction",
        panel=DRAFTING,
        metavar="FILE",
        about="The expected text of the answer, up to edits, for predicted-output.",
    ),
]
MaxNgram = Annotated[
    int | None,
    option(
        "--max-ngram", metavar="N", panel=DRAFTING, about="The longest n-gram that ngram looks up."
    ),
]
MinNgram = Annotated[
    int | None, option("--min-ngram", metavar="N", panel=DRAFTING, about="The shortest.")
]
NgramMatch = Annotated[
    Literal["newest", "oldest"] | None,
    option(
        "--ngram-match",
        metavar="newest|oldest",
        panel=DRAFTING,
        about="Which earlier occurrence ngram copies.",
    ),
]
Samples = Annotated[
    int | None,
    option(
        "--samples",
        "-n",
        panel=SAMPLING,
        min=1,
        metavar="N",
        about="N independent answers.",
    ),
]
Stream = Annotated[
    bool | None,
    switch(
        "--stream/--no-stream",
        panel=OUTPUT,
        about="Print the text as it comes. Default: on a terminal.",
    ),
]
