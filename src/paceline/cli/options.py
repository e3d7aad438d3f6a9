"""The options that commands share, declared once: name, form, place in the help, meaning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paceline.generate import plugins
from paceline.models.known import KNOWN

_MODEL, _PROMPT, _DRAFT = "Model", "Prompt", "Drafting"
_SAMPLING, _LENGTH, _OUTPUT = "Sampling", "Length", "Output"


def _option(*names: str, panel: str, about: str, **settings: Any) -> Any:
    return typer.Option(*names, rich_help_panel=panel, help=about, **settings)


def _switch(*names: str, panel: str, about: str) -> Any:
    return _option(*names, panel=panel, about=about, metavar="")


def model_names() -> list[str]:
    """The names to complete a model with."""
    return list(KNOWN)


Prompt = Annotated[
    str | None,
    _option(
        "--prompt",
        "-p",
        panel=_PROMPT,
        metavar="TEXT",
        about="The prompt. Without it and --messages, standard input is read.",
    ),
]
Messages = Annotated[
    Path | None,
    _option(
        "--messages",
        panel=_PROMPT,
        metavar="FILE",
        about="A JSON file of chat messages: a list of objects with role and content.",
    ),
]
Raw = Annotated[
    bool,
    _switch("--raw", panel=_PROMPT, about="Continue the text as it is, without the chat template."),
]
Model = Annotated[
    str,
    _option(
        "--model",
        "-m",
        panel=_MODEL,
        metavar="NAME|FOLDER|GGUF",
        about="A name that `paceline models` lists, a folder in Hugging Face layout, a GGUF "
        "file, or a hub name.",
        autocompletion=model_names,
    ),
]
Dtype = Annotated[
    Literal["auto", "float32", "bfloat16"],
    _option(
        "--dtype",
        metavar="auto|float32|bfloat16",
        panel=_MODEL,
        about="The number format of the weights.",
    ),
]
Storage = Annotated[
    Literal["auto", "plain", "packed"],
    _option(
        "--storage",
        metavar="auto|plain|packed",
        panel=_MODEL,
        about="Weights packed for the CPU, or not.",
    ),
]
Invariant = Annotated[
    bool,
    _switch(
        "--invariant",
        panel=_MODEL,
        about="Passes of one fixed shape: the same tokens, to the bit, whatever is drafted.",
    ),
]
TrustRemoteCode = Annotated[
    bool,
    _switch(
        "--trust-remote-code", panel=_MODEL, about="Run Python code that comes with the model."
    ),
]
AllowPickle = Annotated[
    bool,
    _switch(
        "--allow-pickle",
        panel=_MODEL,
        about="Load pickled weights where there are no others; that runs any code in them.",
    ),
]
Drafter = Annotated[
    str | None,
    _option(
        "--drafter",
        "-d",
        panel=_DRAFT,
        metavar="NAME",
        about="How to draft; `paceline drafters` lists the names. Several, as in ngram,model, "
        "take turns. Default: ngram, or model where --draft-model is given.",
        autocompletion=lambda: plugins.names("drafter"),
    ),
]
NumDraftTokens = Annotated[
    int,
    _option(
        "--num-draft-tokens",
        "-k",
        metavar="N",
        panel=_DRAFT,
        min=0,
        about="Tokens drafted a round.",
    ),
]


def draft_length(text: str) -> int | Literal["auto"]:
    """A whole number of at least 0, or "auto".

    >>> draft_length("5"), draft_length("auto")
    (5, 'auto')
    """
    if text == "auto":
        return "auto"
    if not text.isascii() or not text.isdigit():
        raise typer.BadParameter(f"it is 'auto' or a whole number of at least 0, not {text!r}")
    return int(text)


DraftLength = Annotated[
    Any,
    _option(
        "--num-draft-tokens",
        "-k",
        metavar="auto|N",
        panel=_DRAFT,
        parser=draft_length,
        about="Tokens drafted a round: as many as pay, none included (auto), or N. With another "
        "controller, the most. Default: auto.",
    ),
]
Controller = Annotated[
    str | None,
    _option(
        "--controller",
        metavar="NAME",
        panel=_DRAFT,
        about="How the draft length is chosen: auto, fixed, or a rule of the literature. Default: "
        "auto, or fixed with -k N.",
        autocompletion=lambda: plugins.names("controller"),
    ),
]
ControllerOption = Annotated[
    list[str] | None,
    _option(
        "--controller-option",
        panel=_DRAFT,
        metavar="NAME=VALUE",
        about="A setting of the controller. Repeatable.",
    ),
]
Verify = Annotated[
    str | None,
    _option(
        "--verify",
        panel=_DRAFT,
        metavar="NAME",
        about="The rule that accepts drafts; left out, the one that suits the drafter, and with "
        "--seed and -k auto coupling, by which a seed gives the same tokens whatever is drafted. "
        "typical, lenience and top-beta are not exact: they change what the target would say.",
        autocompletion=lambda: plugins.names("verifier"),
    ),
]
VerifyOption = Annotated[
    list[str] | None,
    _option(
        "--verify-option",
        panel=_DRAFT,
        metavar="NAME=VALUE",
        about="A setting of the rule, of lossy ones say. Repeatable.",
    ),
]
DraftModel = Annotated[
    str | None,
    _option(
        "--draft-model",
        panel=_DRAFT,
        metavar="NAME|FOLDER|GGUF",
        about="A smaller model with the same tokenizer; for --drafter universal with any.",
        autocompletion=model_names,
    ),
]
DraftStorage = Annotated[
    Literal["auto", "plain", "packed", "int8", "int4"] | None,
    _option(
        "--draft-storage",
        metavar="KIND",
        panel=_DRAFT,
        about="Weights of the draft model: auto, plain or packed; int8 and int4 are coarser and "
        "faster.",
    ),
]
DraftHeadTokens = Annotated[
    int | None,
    _option(
        "--draft-head-tokens",
        panel=_DRAFT,
        min=1,
        metavar="N",
        about="Let the draft model propose only its N most frequent tokens and those of the "
        "text; faster.",
    ),
]
Reference = Annotated[
    list[Path] | None,
    _option(
        "--reference",
        panel=_DRAFT,
        metavar="FILE",
        about="A text that the answer may quote, for ngram and reference. Repeatable.",
    ),
]
Prediction = Annotated[
    Path | None,
    _option(
        "--prediction",
        panel=_DRAFT,
        metavar="FILE",
        about="The text that the answer is expected to be, edits aside, for predicted-output.",
    ),
]
MaxNgram = Annotated[
    int | None,
    _option("--max-ngram", metavar="N", panel=_DRAFT, about="The longest n that ngram looks up."),
]
MinNgram = Annotated[
    int | None, _option("--min-ngram", metavar="N", panel=_DRAFT, about="The shortest.")
]
NgramMatch = Annotated[
    Literal["newest", "oldest"] | None,
    _option(
        "--ngram-match",
        metavar="newest|oldest",
        panel=_DRAFT,
        about="Which earlier occurrence ngram copies.",
    ),
]
DrafterOption = Annotated[
    list[str] | None,
    _option(
        "--drafter-option",
        panel=_DRAFT,
        metavar="NAME=VALUE",
        about="Any other setting of the drafter. Repeatable.",
    ),
]
Temperature = Annotated[
    float,
    _option(
        "--temperature", metavar="X", panel=_SAMPLING, about="0 takes the most probable token."
    ),
]
TopK = Annotated[
    int,
    _option(
        "--top-k",
        metavar="N",
        panel=_SAMPLING,
        about="Keep the k most probable tokens; 0: all.",
    ),
]
TopP = Annotated[
    float,
    _option(
        "--top-p",
        metavar="X",
        panel=_SAMPLING,
        about="Keep the most probable tokens with this mass.",
    ),
]
MinP = Annotated[
    float,
    _option(
        "--min-p",
        metavar="X",
        panel=_SAMPLING,
        about="Keep tokens of at least this times the probability of the best.",
    ),
]
RepetitionPenalty = Annotated[
    float,
    _option(
        "--repetition-penalty",
        metavar="X",
        panel=_SAMPLING,
        about="Above 1: tokens of the prompt and answer become less probable.",
    ),
]
PresencePenalty = Annotated[
    float,
    _option(
        "--presence-penalty",
        metavar="X",
        panel=_SAMPLING,
        about="Subtracted from the logits of tokens in the answer.",
    ),
]
FrequencyPenalty = Annotated[
    float,
    _option(
        "--frequency-penalty",
        metavar="X",
        panel=_SAMPLING,
        about="The same, once for each time the token stands there.",
    ),
]
Seed = Annotated[
    int | None,
    _option("--seed", metavar="N", panel=_SAMPLING, about="The same seed gives the same answer."),
]
Samples = Annotated[
    int | None,
    _option(
        "--samples",
        "-n",
        panel=_SAMPLING,
        min=1,
        metavar="N",
        about="This many independent answers.",
    ),
]
MaxTokens = Annotated[
    int,
    _option(
        "--max-tokens",
        metavar="N",
        panel=_LENGTH,
        min=0,
        about="The longest answer, in tokens.",
    ),
]
MinTokens = Annotated[
    int,
    _option(
        "--min-tokens",
        metavar="N",
        panel=_LENGTH,
        min=0,
        about="The shortest answer, in tokens.",
    ),
]
Stop = Annotated[
    list[str] | None,
    _option(
        "--stop",
        panel=_LENGTH,
        metavar="TEXT",
        about="A text that ends the answer and is not part of it. Repeatable.",
    ),
]
Stream = Annotated[
    bool | None,
    _switch(
        "--stream/--no-stream",
        panel=_OUTPUT,
        about="Print the text as it comes. Default: on a terminal.",
    ),
]
Logprobs = Annotated[
    int | None,
    _option(
        "--logprobs",
        panel=_OUTPUT,
        min=0,
        metavar="N",
        about="With --json: log-probabilities, and those of the N most probable tokens.",
    ),
]
AsJson = Annotated[bool, _switch("--json", panel=_OUTPUT, about="Print one JSON object.")]
