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
        about="Prompts: JSON lines with turns, prompt or messages, or plain text, one per line; - "
        "is "
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
        about="At most N prompts, round-robin over categories. Default: all.",
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
        "or a hub name; with --url the name of the model there (default: the only one).",
        autocompletion=model_names,
    ),
]
Url = Annotated[
    str | None,
    _option(
        "--url",
        panel=_SERVERS,
        metavar="URL",
        about="Audit a speculating server with an OpenAI-compatible API instead of Paceline.",
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
        about="The name of the model there. Default: that of --model.",
    ),
]
Api = Annotated[
    Literal["completions", "chat"],
    _option(
        "--api",
        panel=_SERVERS,
        metavar="completions|chat",
        about="Send the text as it is, or as a user message.",
    ),
]
Concurrency = Annotated[
    int,
    _option(
        "--concurrency",
        panel=_SERVERS,
        metavar="N",
        min=1,
        about="Number of sampled answers requested concurrently.",
    ),
]
Timeout = Annotated[
    float, _option("--timeout", panel=_SERVERS, metavar="SECONDS", about="Timeout for one answer.")
]
Retries = Annotated[
    int,
    _option(
        "--retries",
        panel=_SERVERS,
        metavar="N",
        min=0,
        about="How often a failed request is retried.",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    _option(
        "--api-key-env",
        panel=_SERVERS,
        metavar="NAME",
        about="The environment variable with the API key of both servers.",
    ),
]
TieTolerance = Annotated[
    float | None,
    _option(
        "--tie-tolerance",
        panel=_SERVERS,
        metavar="X",
        min=0.0,
        about="The largest gap of a near tie, in nats. Default: measured.",
    ),
]
MaxTokens = Annotated[
    int,
    _option(
        "--max-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The maximum length of a greedy answer, in tokens.",
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
        about="Sampled answers to each prompt, on each side. Default: as many as --detect and "
        "--power require.",
    ),
]
SampleTokens = Annotated[
    int,
    _option(
        "--sample-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The maximum length of a sampled answer, in tokens.",
    ),
]
Detect = Annotated[
    float,
    _option(
        "--detect",
        panel=_HOW_MUCH,
        metavar="X",
        about="The smallest detectable difference of a token's distribution (total variation).",
    ),
]
Power = Annotated[
    float,
    _option("--power", panel=_HOW_MUCH, metavar="X", about="The probability of detecting it."),
]
FalseAlarmRate = Annotated[
    float,
    _option(
        "--false-alarm-rate",
        panel=_HOW_MUCH,
        metavar="X",
        about="The false-alarm rate of all two-sample tests together.",
    ),
]
Seed = Annotated[
    int,
    _option("--seed", panel=_HOW_MUCH, metavar="N", min=0, about="Seed for all sampling."),
]
Html = Annotated[
    Path | None,
    _option("--html", panel=_OUTPUT, metavar="FILE", about="Write the report as one HTML file."),
]
Markdown = Annotated[
    Path | None,
    _option("--markdown", panel=_OUTPUT, metavar="FILE", about="Write the report as Markdown."),
]
