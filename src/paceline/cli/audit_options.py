"""The options of `paceline audit` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paceline.cli.options import model_names

_WHAT, _SERVERS = "What to audit", "Servers"
_HOW_MUCH, _OUTPUT = "How much", "Output"


def _option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


Prompts = Annotated[
    Path,
    _option(
        "--prompts",
        panel=_WHAT,
        metavar="FILE",
        about="Prompts: JSON lines with turns, prompt or messages, or plain text, one a line; - is "
        "standard input.",
    ),
]
Limit = Annotated[
    int | None,
    _option(
        "--limit",
        panel=_WHAT,
        metavar="N",
        min=1,
        about="So many of the prompts, the categories in turn; all where left out.",
    ),
]
Model = Annotated[
    str | None,
    _option(
        "--model",
        "-m",
        panel=_WHAT,
        metavar="NAME|FOLDER|GGUF",
        about="A name that `paceline models` lists (default: smollm2-135m), a folder, a GGUF file, "
        "or a hub name; with --url the name of the model there, the only one where left out.",
        autocompletion=model_names,
    ),
]
Url = Annotated[
    str | None,
    _option(
        "--url",
        panel=_SERVERS,
        metavar="URL",
        about="Audit a server with OpenAI's interface that speculates, rather than Paceline.",
    ),
]
BaselineUrl = Annotated[
    str | None,
    _option(
        "--baseline-url",
        panel=_SERVERS,
        metavar="URL",
        about="The same model, served without speculation.",
    ),
]
BaselineModel = Annotated[
    str | None,
    _option(
        "--baseline-model",
        panel=_SERVERS,
        metavar="NAME",
        about="Its name there; that of --model where left out.",
    ),
]
Api = Annotated[
    Literal["completions", "chat"],
    _option(
        "--api",
        panel=_SERVERS,
        metavar="completions|chat",
        about="Send the text as it is, or as a message of the user.",
    ),
]
Concurrency = Annotated[
    int,
    _option(
        "--concurrency",
        panel=_SERVERS,
        metavar="N",
        min=1,
        about="Sampled answers that are asked for at once.",
    ),
]
Timeout = Annotated[
    float, _option("--timeout", panel=_SERVERS, metavar="SECONDS", about="For one answer.")
]
Retries = Annotated[
    int,
    _option(
        "--retries",
        panel=_SERVERS,
        metavar="N",
        min=0,
        about="How often a request that failed is sent again.",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    _option(
        "--api-key-env",
        panel=_SERVERS,
        metavar="NAME",
        about="The environment variable that holds the key of both servers.",
    ),
]
TieTolerance = Annotated[
    float | None,
    _option(
        "--tie-tolerance",
        panel=_SERVERS,
        metavar="X",
        min=0.0,
        about="The largest gap of a near tie, in nats; left out, it is measured.",
    ),
]
MaxTokens = Annotated[
    int,
    _option(
        "--max-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The longest greedy answer, in tokens.",
    ),
]
Samples = Annotated[
    int | None,
    _option(
        "--samples",
        "-n",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="Sampled answers to each prompt, on each side; left out, as many as --detect and "
        "--power ask for.",
    ),
]
SampleTokens = Annotated[
    int,
    _option(
        "--sample-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The longest sampled answer, in tokens.",
    ),
]
Detect = Annotated[
    float,
    _option(
        "--detect",
        panel=_HOW_MUCH,
        metavar="X",
        about="The difference of two laws of a token that has to be seen, as total variation.",
    ),
]
Power = Annotated[
    float,
    _option("--power", panel=_HOW_MUCH, metavar="X", about="The probability of seeing it."),
]
FalseAlarmRate = Annotated[
    float,
    _option(
        "--false-alarm-rate",
        panel=_HOW_MUCH,
        metavar="X",
        about="That of the two-sample tests, all together.",
    ),
]
Seed = Annotated[
    int,
    _option("--seed", panel=_HOW_MUCH, metavar="N", min=0, about="Of everything that is drawn."),
]
Html = Annotated[
    Path | None,
    _option("--html", panel=_OUTPUT, metavar="FILE", about="Write the report as one HTML file."),
]
Markdown = Annotated[
    Path | None,
    _option("--markdown", panel=_OUTPUT, metavar="FILE", about="Write the report as Markdown."),
]
