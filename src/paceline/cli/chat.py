"""`paceline chat`: one load, many turns."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from paceline.cli import interrupts, options, render, terminal
from paceline.cli.calls import DEFAULT_MODEL, load_for, settled, uses_chat
from paceline.cli.generate import print_answer
from paceline.cli.interrupts import Terminated
from paceline.cli.options import option
from paceline.errors import InvalidInput, PacelineError

if TYPE_CHECKING:
    from paceline.generate.api import Generation, LanguageModel, Piece

DEFAULT_MAX_TOKENS = 512
RESET, EXIT = "/reset", "/exit"
_HELP = f"Ctrl-C stops an answer, {RESET} starts a new conversation, {EXIT} or Ctrl-D ends."

System = Annotated[
    str | None,
    option(
        "--system",
        metavar="TEXT",
        panel="Prompt",
        about="A system message before the conversation.",
    ),
]


@options.takes(
    *options.LOADED,
    *options.DRAFTED,
    *options.SAMPLED,
    "chat_template_kwargs",
    "max_tokens",
    "stop",
    before="as_json",
    max_tokens=DEFAULT_MAX_TOKENS,
)
def chat(
    shared: dict[str, Any],
    system: System = None,
    model: options.Model = DEFAULT_MODEL,
    as_json: options.AsJson = False,
) -> None:
    """Chat with a model. It is loaded once, and remembers the conversation.

    A line is a message; /reset starts a new conversation, /exit or Ctrl-D ends, and Ctrl-C stops an
    answer. Messages can also come from a pipe, one per line.
    """
    loading = options.pop(shared, options.LOADED)
    request, form = settled(shared)
    target = load_for(request, form, model, loading)
    talk = Conversation(target, request, system, as_json=as_json)
    if not is_typed():
        for line in map(str.strip, sys.stdin):
            if line == EXIT:
                break
            talk.take(line)
        return
    terminal.err().print(f"{target.name}. {_HELP}", style="dim", soft_wrap=True)
    for line in _typed_lines():
        try:
            talk.take(line)
        except Terminated:
            raise
        except KeyboardInterrupt:
            interrupts.forget()
            terminal.note("stopped")
        except PacelineError as error:
            terminal.error(str(error))


@dataclass
class Conversation:
    """The conversation so far.

    Args:
        model: the model that answers.
        request: the options of each answer.
        system: the system message of every conversation.
        as_json: print answers as JSON, one object per line.

    Raises:
        InvalidInput: the model has no chat template, or refuses these options.
    """

    model: LanguageModel
    request: dict[str, Any]
    system: str | None = None
    as_json: bool = False
    messages: list[dict[str, str]] = field(default_factory=list)
    _explained: bool = False

    def __post_init__(self) -> None:
        if not uses_chat(self.model.tokenizer):
            raise InvalidInput(
                f"{self.model.name} has no chat template, so it cannot chat; `paceline generate` "
                "continues texts"
            )
        self.reset()
        self._num_tokens([*self.messages, {"role": "user", "content": "?"}])

    def reset(self) -> None:
        """Start a new conversation."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]

    def take(self, line: str) -> None:
        """Answer a line, or start a new conversation if it asks for that.

        A message that is not answered is forgotten; of an interrupted answer, the part that was
        shown is remembered.

        Raises:
            InvalidInput: the message cannot be answered.
            KeyboardInterrupt: the user interrupted the answer.
        """
        if line == RESET:
            self.reset()
            terminal.note("a new conversation")
        elif line:
            self._answer(line)

    def _answer(self, line: str) -> None:
        messages = [*self.messages, {"role": "user", "content": line}]
        limit = self.model.target.info.max_length
        length = self._num_tokens(messages)
        if limit is not None and length >= limit:
            raise InvalidInput(
                f"the conversation has {length} tokens with this message, and {self.model.name} "
                f"takes {limit}; {RESET} starts a new one, or send a shorter message"
            )
        pieces: list[Piece] = []
        try:
            if self.as_json:
                generation = self.model.generate(messages, **self.request)
                terminal.print_json(generation.to_json())
                sys.stdout.flush()
            else:
                generation = print_answer(
                    self.model, messages, self.request, stream=True, pieces=pieces
                )
        except KeyboardInterrupt:
            if text := "".join(piece.text for piece in pieces):
                self.messages = [*messages, {"role": "assistant", "content": text}]
            raise
        self.messages = [*messages, {"role": "assistant", "content": generation.text}]
        if not self.as_json:
            self._print_answer(generation)
        if limit is not None and length + len(generation.token_ids) >= limit:
            terminal.note(f"the context of {limit} tokens is full; {RESET} starts a new one")

    def _print_answer(self, generation: Generation) -> None:
        legend = not self._explained and terminal.has_colour(terminal.out())
        terminal.err().print(render.summary(generation, legend=legend), soft_wrap=True)
        self._explained |= bool(generation.spec["num_accepted_tokens"])

    def _num_tokens(self, messages: list[dict[str, str]]) -> int:
        from paceline.text import ChatOptions

        options = ChatOptions(template_kwargs=self.request["chat_template_kwargs"])
        return len(self.model.encode(messages, options))


def _typed_lines() -> Iterator[str]:
    """The lines typed on the terminal; Ctrl-C drops the current line, Ctrl-D ends."""
    with suppress(ImportError):  # where available, it lets `input` edit lines
        import readline  # noqa: F401
    while True:
        try:
            line = _typed("> ").strip()
        except EOFError:
            terminal.err().print()
            return
        except Terminated:
            raise
        except KeyboardInterrupt:
            interrupts.forget()
            terminal.err().print(f"\n{_HELP}", style="dim", soft_wrap=True)
            continue
        if line == EXIT:
            return
        yield line


def is_typed() -> bool:
    """Whether standard input is a terminal."""
    return sys.stdin.isatty()


def _typed(prompt: str) -> str:
    if sys.stdout.isatty():
        return input(prompt)
    # If standard output is redirected, it is only for answers.
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        raise EOFError
    return line
