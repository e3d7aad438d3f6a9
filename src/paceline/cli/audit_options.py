"""The options of `paceline audit` that no other command has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from paceline.cli.options import model_names, option

_WHAT, _SERVERS = "What to audit", "Servers"
_HOW_MUCH, _OUTPUT = "How much", "Output"


Prompts = Annotated[
    Path,
    option(
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
    option(
        "--limit",
        panel=_WHAT,
        metavar="N",
        min=1,
        about="At most N prompts, round-robin over categories. Default: all.",
    ),
]
Model = Annotated[
    str | None,
    option(
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
    option(
        "--url",
        panel=_SERVERS,
        metavar="URL",
        about="Audit a speculating server with an OpenAI-compatible API instead of Paceline.",
    ),
]
BaselineUrl = Annotated[
    str | None,
    option(
        "--baseline-url",
        panel=_SERVERS,
        metavar="URL",
        about="The same model, served without speculation.",
    ),
]
BaselineModel = Annotated[
    str | None,
    option(
        "--baseline-model",
        panel=_SERVERS,
        metavar="NAME",
        about="The name of the model there. Default: that of --model.",
    ),
]
Api = Annotated[
    Literal["completions", "chat"],
    option(
        "--api",
        panel=_SERVERS,
        metavar="completions|chat",
        about="Send the text as it is, or as a user message.",
    ),
]
Concurrency = Annotated[
    int,
    option(
        "--concurrency",
        panel=_SERVERS,
        metavar="N",
        min=1,
        about="Number of sampled answers requested concurrently.",
    ),
]
Timeout = Annotated[
    float, option("--timeout", panel=_SERVERS, metavar="SECONDS", about="Timeout for one answer.")
]
Retries = Annotated[
    int,
    option(
        "--retries",
        panel=_SERVERS,
        metavar="N",
        min=0,
        about="How often a failed request is retried.",
    ),
]
ApiKeyEnv = Annotated[
    str | None,
    option(
        "--api-key-env",
        panel=_SERVERS,
        metavar="NAME",
        about="The environment variable with the API key of both servers.",
    ),
]
TieTolerance = Annotated[
    float | None,
    option(
        "--tie-tolerance",
        panel=_SERVERS,
        metavar="X",
        min=0.0,
        about="The largest gap of a near tie, in nats. Default: measured.",
    ),
]
MaxTokens = Annotated[
    int,
    option(
        "--max-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The maximum length of a greedy answer, in tokens.",
    ),
]
Samples = Annotated[
    int | None,
    option(
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
    option(
        "--sample-tokens",
        panel=_HOW_MUCH,
        metavar="N",
        min=1,
        about="The maximum length of a sampled answer, in tokens.",
    ),
]
Detect = Annotated[
    float,
    option(
        "--detect",
        panel=_HOW_MUCH,
        metavar="X",
        about="The smallest detectable difference of a token's distribution (total variation).",
    ),
]
Power = Annotated[
    float,
    option("--power", panel=_HOW_MUCH, metavar="X", about="The probability of detecting it."),
]
FalseAlarmRate = Annotated[
    float,
    option(
        "--false-alarm-rate",
        panel=_HOW_MUCH,
        metavar="X",
        about="The false-alarm rate of all two-sample tests together.",
    ),
]
Seed = Annotated[
    int,
    option("--seed", panel=_HOW_MUCH, metavar="N", min=0, about="Seed for all sampling."),
]
Html = Annotated[
    Path | None,
    option("--html", panel=_OUTPUT, metavar="FILE", about="Write the report as one HTML file."),
]
Markdown = Annotated[
    Path | None,
    option("--markdown", panel=_OUTPUT, metavar="FILE", about="Write the report as Markdown."),
]
