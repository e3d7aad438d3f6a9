"""The table of the options of a call, for all interfaces: meaning, default, range, spelling.

Nothing here imports torch, so that the command line can read it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from paceline.checks import require_int
from paceline.errors import InvalidInput

DEFAULT_MAX_TOKENS = 256

Kind = Literal["any", "whole", "flag", "texts", "functions", "mapping"]
Door = Literal["python", "command line", "huggingface"]

EVERYWHERE: frozenset[Door] = frozenset({"python", "command line", "huggingface"})
_HERE: frozenset[Door] = frozenset({"python", "command line"})
_PYTHON: frozenset[Door] = frozenset({"python"})

MODEL, PROMPT, DRAFTING = "Model", "Prompt", "Drafting"
SAMPLING, LENGTH, OUTPUT = "Sampling", "Length", "Output"


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """The definition of one option.

    Args:
        about: its meaning, in one or two sentences.
        panel: the panel under which the command line lists it.
        flags: its spellings on the command line.
        metavar: the placeholder for its value there.
        default: its value if it is left out.
        kind: how a value is checked; "any" leaves that to the part that takes it.
        low, high: the range of an integer.
        may_be_none: whether None is allowed, meaning "left to Paceline".
        doors: the interfaces that take it.
    """

    about: str
    panel: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    default: Any = None
    kind: Kind = "any"
    low: int = 0
    high: int | None = None
    may_be_none: bool = True
    doors: frozenset[Door] = _HERE

    def check(self, name: str, value: Any) -> Any:
        """The value in the canonical form that the parts take.

        Raises:
            InvalidInput: the value is of another kind, or out of range.
        """
        if value is None and self.may_be_none:
            return [] if self.kind == "texts" else None
        if self.kind == "whole":
            return require_int(name, value, low=self.low, high=self.high)
        if self.kind == "flag":
            return _flag(name, value)
        if self.kind == "texts":
            return texts(name, value)
        if self.kind == "functions":
            return _functions(name, value)
        if self.kind == "mapping":
            return _mapping(name, value)
        return value


def _draft(about: str, **more: Any) -> Option:
    return Option(about=about, panel=DRAFTING, **more)


def _sampling(about: str, *flags: str, metavar: str = "X", default: Any = None) -> Option:
    doors = _HERE if flags else _PYTHON
    return Option(
        about=about, panel=SAMPLING, flags=flags, metavar=metavar, default=default, doors=doors
    )


TABLE: Mapping[str, Option] = {
    "drafter": _draft(
        "How to draft; `paceline drafters` lists the names. Several, as in ngram,model, take "
        "turns. Default: ngram; with a draft head its own kind; with a draft model the tree of one "
        "path with leaves under auto, else model.",
        flags=("--drafter", "-d"),
        metavar="NAME",
        doors=EVERYWHERE,
    ),
    "drafter_options": _draft(
        "Any other setting of the drafter. Repeatable.",
        flags=("--drafter-option",),
        metavar="NAME=VALUE",
    ),
    "draft_model": _draft(
        "A smaller model with the same tokenizer; for --drafter universal with any. It is loaded "
        "in the cheapest form that pays on this machine, since drafts are verified.",
        flags=("--draft-model",),
        metavar="NAME|FOLDER|GGUF",
        doors=EVERYWHERE,
    ),
    "draft_head": _draft(
        "A head that was trained for this model, such as Medusa's: a folder, a file or a hub name. "
        "It drafts by its own kind; --drafter ngram,head takes turns with n-grams.",
        flags=("--draft-head",),
        metavar="FOLDER|FILE|NAME",
        doors=EVERYWHERE,
    ),
    "draft_storage": _draft(
        "Weights of the draft model, or else of the draft head: auto, plain or packed; int8 and "
        "int4 are coarser and faster. "
        "Default: int4 for a draft model if that is fast.",
        flags=("--draft-storage",),
        metavar="KIND",
        doors=EVERYWHERE,
    ),
    "draft_head_tokens": _draft(
        "Let the draft model propose only its N most frequent tokens and those of the text, or "
        "all; without one, the draft head its N most frequent tokens. Default: for a draft model "
        "48,000 if its vocabulary is clearly larger.",
        flags=("--draft-head-tokens",),
        metavar="N|all",
        doors=EVERYWHERE,
    ),
    "settings": _draft(
        "A file that `paceline recommend` wrote: how to draft, instead of the other options that "
        "say it.",
        flags=("--settings",),
        metavar="FILE",
        doors=EVERYWHERE,
    ),
    "controller": _draft(
        "How the draft length is chosen: auto, fixed, or a rule of the literature. Default: auto, "
        "or fixed with -k N.",
        flags=("--controller",),
        metavar="NAME",
        doors=EVERYWHERE,
    ),
    "controller_options": _draft(
        "A setting of the controller. Repeatable.",
        flags=("--controller-option",),
        metavar="NAME=VALUE",
        doors=EVERYWHERE,
    ),
    "num_draft_tokens": _draft(
        "Draft tokens per round: auto (as many as pay, possibly 0), or exactly N. With another "
        "controller, at most N. Default: auto.",
        flags=("--num-draft-tokens", "-k"),
        metavar="auto|N",
        doors=EVERYWHERE,
    ),
    "verify": _draft(
        "The rule that accepts drafts. Default: the one that suits the drafter; with --seed and "
        "-k auto it is coupling, with which a seed gives the same tokens whatever is drafted. "
        "typical, lenience, top-beta, top-k and distance are not exact: they change the output "
        "distribution.",
        flags=("--verify",),
        metavar="NAME",
        doors=EVERYWHERE,
    ),
    "verify_options": _draft(
        "A setting of the rule, such as lenience=0.5. Repeatable.",
        flags=("--verify-option",),
        metavar="NAME=VALUE",
        doors=EVERYWHERE,
    ),
    "tools": Option(
        about="The tools that the model may call, as a JSON file of their schemas, for its chat "
        "template.",
        panel=PROMPT,
        flags=("--tools",),
        metavar="FILE",
    ),
    "chat_template_kwargs": Option(
        about="A value for the chat template, such as enable_thinking=false. Repeatable.",
        panel=PROMPT,
        flags=("--chat-option",),
        metavar="NAME=VALUE",
        kind="mapping",
    ),
    "continue_final_message": Option(
        about="Continue the last message, which is the beginning of the model's answer.",
        panel=PROMPT,
        flags=("--continue-final-message",),
        default=False,
        kind="flag",
        may_be_none=False,
    ),
    "temperature": _sampling("0 takes the most probable token.", "--temperature", default=0.0),
    "top_k": _sampling(
        "Keep the k most probable tokens; 0 keeps all. Default: the model's own, else 0.",
        "--top-k",
        metavar="N",
        default=0,
    ),
    "top_p": _sampling(
        "Keep the smallest set of most probable tokens with this total probability. Default: the "
        "model's own, else 1.",
        "--top-p",
        default=1.0,
    ),
    "min_p": _sampling(
        "Keep tokens with at least this fraction of the highest probability. Default: the model's "
        "own, "
        "else 0.",
        "--min-p",
        default=0.0,
    ),
    "repetition_penalty": _sampling(
        "Above 1: tokens of the prompt and answer become less probable. Default: the model's own, "
        "else 1.",
        "--repetition-penalty",
        default=1.0,
    ),
    "presence_penalty": _sampling(
        "Subtracted from the logits of tokens in the answer.", "--presence-penalty", default=0.0
    ),
    "frequency_penalty": _sampling(
        "The same, once for each occurrence of the token.", "--frequency-penalty", default=0.0
    ),
    "logit_bias": _sampling("Added to the logits, by token id.", default={}),
    "allowed_token_ids": _sampling("Only these tokens may be generated."),
    "banned_token_ids": _sampling("These tokens are never generated.", default=()),
    "seed": Option(
        about="The same seed gives the same answer.",
        panel=SAMPLING,
        flags=("--seed",),
        metavar="N",
        doors=EVERYWHERE,
    ),
    "max_tokens": Option(
        about="The maximum length of the answer, in tokens.",
        panel=LENGTH,
        flags=("--max-tokens",),
        metavar="N",
        default=DEFAULT_MAX_TOKENS,
        kind="whole",
    ),
    "min_tokens": Option(
        about="The minimum length of the answer, in tokens.",
        panel=LENGTH,
        flags=("--min-tokens",),
        metavar="N",
        default=0,
        kind="whole",
        may_be_none=False,
    ),
    "stop": Option(
        about="A text that ends the answer and is not part of it. Repeatable.",
        panel=LENGTH,
        flags=("--stop",),
        metavar="TEXT",
        kind="texts",
    ),
    "stop_token_ids": Option(
        about="Tokens that end the answer, besides the model's own.", panel=LENGTH, doors=_PYTHON
    ),
    "ignore_eos": Option(
        about="Continue when the model emits an end-of-sequence token.",
        panel=LENGTH,
        default=False,
        kind="flag",
        may_be_none=False,
        doors=_PYTHON,
    ),
    "logprobs": Option(
        about="With --json: log-probabilities, and those of the N most probable tokens.",
        panel=OUTPUT,
        flags=("--logprobs",),
        metavar="N",
        kind="whole",
    ),
    "trace": Option(
        about="Write the run to a file, round by round: drafts, verdicts, times. "
        "`paceline lesson` replays it.",
        panel=OUTPUT,
        flags=("--trace",),
        metavar="FILE",
    ),
    "structured_outputs": Option(
        about="The form of the answer: json (a schema), json_object, regex, choice or grammar.",
        panel=SAMPLING,
        doors=_PYTHON,
    ),
    "processors": Option(
        about="Functions from the token ids so far and logits to logits.",
        panel=SAMPLING,
        default=(),
        kind="functions",
        may_be_none=False,
        doors=_PYTHON,
    ),
    "draft_processors": Option(
        about="The processors that may run on draft logits too, because they are stateless.",
        panel=SAMPLING,
        default=(),
        kind="functions",
        may_be_none=False,
        doors=_PYTHON,
    ),
}


def texts(name: str, given: Any) -> list[str]:
    """The strings that end an answer; a single string is one.

    >>> texts("stop", "END")
    ['END']
    """
    if isinstance(given, (bytes, Mapping)) or not isinstance(given, Iterable):
        raise InvalidInput(f"{name} must be a text or a list of texts; it is {given!r:.80}")
    found = [given] if isinstance(given, str) else list(given)
    for text in found:
        if not isinstance(text, str) or not text:
            raise InvalidInput(f"a stop string must be a text of at least one character: {text!r}")
    return found


def _flag(name: str, given: Any) -> bool:
    """True or False, and nothing that is merely truthy or falsy."""
    if not isinstance(given, bool):
        raise InvalidInput(f"{name} must be True or False; it is {given!r:.80}")
    return given


def _functions(name: str, given: Any) -> tuple[Any, ...]:
    found: tuple[Any, ...] = tuple(given) if isinstance(given, Iterable) else (None,)
    if not all(map(callable, found)):
        raise InvalidInput(f"{name} must be a list of functions; it is {given!r:.80}")
    return found


def _mapping(name: str, given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping) or not all(isinstance(key, str) for key in given):
        raise InvalidInput(f"{name} must map names to values; it is {given!r:.80}")
    return dict(given)
