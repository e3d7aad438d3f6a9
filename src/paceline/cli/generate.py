"""`paceline generate`: answer a prompt, with accepted draft tokens in colour."""

from __future__ import annotations

import sys
from contextlib import closing
from typing import TYPE_CHECKING, Any

from paceline.checks import require_writable
from paceline.cli import generate_options as own
from paceline.cli import options, render, terminal
from paceline.cli.calls import DEFAULT_MODEL, load_for, print_written, settled, uses_chat
from paceline.cli.inputs import drafter_settings, read_prompt, read_schema
from paceline.errors import InvalidInput

if TYPE_CHECKING:
    from paceline.generate.api import Generation, LanguageModel, Piece

DEFAULT_MAX_TOKENS = 128


def print_answer(
    model: LanguageModel,
    prompt: Any,
    request: dict[str, Any],
    *,
    stream: bool,
    pieces: list[Piece] | None = None,
) -> Generation:
    """Generate and print: in colour on a terminal, elsewhere the plain text.

    Args:
        model, prompt, request: the model, the prompt and the options.
        stream: print the text as it comes.
        pieces: a list to which the pieces are added; it has what was generated if interrupted.
    """
    from paceline.generate.api import Chunk

    console = terminal.out()
    pieces = [] if pieces is None else pieces
    shown = 0

    def show() -> None:
        nonlocal shown
        new, shown = pieces[shown:], len(pieces)
        if console.is_terminal:
            console.print(render.answer_text(new), end="", soft_wrap=True)
        else:
            sys.stdout.write("".join(piece.text for piece in new))
        sys.stdout.flush()

    generation = None
    try:
        with closing(model.stream(prompt, **request)) as items:
            for item in items:
                if not isinstance(item, Chunk):
                    generation = item
                    continue
                pieces += item.pieces
                if stream:
                    show()
        show()
    finally:
        # Whatever comes next, an error or the shell's prompt, starts on a new line.
        if shown or generation is not None:
            sys.stdout.write("\n")
            sys.stdout.flush()
    assert generation is not None  # the last item of every stream
    return generation


@options.takes(
    *options.LOADED,
    *options.DRAFTED,
    *options.SAMPLED,
    *options.CHAT,
    "max_tokens",
    "min_tokens",
    "stop",
    "logprobs",
    "trace",
    before="reference",
    max_tokens=DEFAULT_MAX_TOKENS,
)
def generate(
    shared: dict[str, Any],
    prompt: own.Prompt = None,
    messages: own.Messages = None,
    raw: options.Raw = False,
    model: options.Model = DEFAULT_MODEL,
    reference: own.Reference = None,
    prediction: own.Prediction = None,
    max_ngram: own.MaxNgram = None,
    min_ngram: own.MinNgram = None,
    ngram_match: own.NgramMatch = None,
    n: own.Samples = None,
    json_schema: own.JsonSchema = None,
    stream: own.Stream = None,
    as_json: options.AsJson = False,
) -> None:
    """Generate text. Accepted draft tokens are coloured."""
    if as_json and stream:
        raise InvalidInput("--json prints one object at the end; leave --stream out")
    if shared["logprobs"] is not None and not as_json:
        raise InvalidInput("--logprobs are printed with --json; add it")
    if n is not None and stream:
        raise InvalidInput("several answers come together at the end; leave --stream or -n out")
    if shared["trace"] is not None:
        if n is not None:
            raise InvalidInput("--trace writes down one answer; leave it or -n out")
        require_writable("--trace", shared["trace"])
    loading = options.pop(shared, options.LOADED)
    given = read_prompt(prompt, messages, raw=raw)
    schema = None if json_schema is None else read_schema(json_schema)
    ngram = {"max_ngram": max_ngram, "min_ngram": min_ngram, "match": ngram_match}
    request, form = settled(shared, drafter_settings(reference or (), ngram, prediction))
    if schema is not None:
        request["structured_outputs"] = {"json": schema}
    target = load_for(request, form, model, loading)
    if isinstance(given, str) and uses_chat(target.tokenizer, raw=raw):
        given = [{"role": "user", "content": given}]
    if n is not None:
        _several(target, given, request, n, as_json=as_json)
    elif as_json:
        terminal.print_json(target.generate(given, **request).to_json())
    else:
        console = terminal.out()
        live = console.is_terminal if stream is None else stream
        generation = print_answer(target, given, request, stream=live)
        legend = terminal.has_colour(console)
        terminal.err().print(render.summary(generation, legend=legend), soft_wrap=True)
    if request["trace"] is not None:
        print_written([request["trace"]])


def _several(
    model: LanguageModel, prompt: Any, request: dict[str, Any], n: int, *, as_json: bool
) -> None:
    """Several answers, one after another; in JSON one object that contains them."""
    generations = model.generate(prompt, n=n, **request)
    if as_json:
        terminal.print_json({"generations": [item.to_json() for item in generations]})
        return
    console = terminal.out()
    for number, generation in enumerate(generations, start=1):
        terminal.err().print(f"[{number} of {n}]", style="dim")
        text = generation.text
        sys.stdout.write((terminal.printable(text) if console.is_terminal else text) + "\n")
        sys.stdout.flush()
        terminal.err().print(render.summary(generation, legend=False), soft_wrap=True)
