"""`paceline demo`: a real model answers two prompts, plainly and speculatively, side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from paceline.checks import require_writable
from paceline.cli import options, terminal, threads
from paceline.cli.calls import DEFAULT_MODEL, print_written
from paceline.cli.comparison import Case, Comparison, compare, typical_speed
from paceline.cli.demo_view import Lines, Screen, Silent, View
from paceline.cli.generate import DEFAULT_MAX_TOKENS
from paceline.cli.options import option

CASES = (
    Case(
        "quote",
        "The answer repeats much of the prompt, so speculation should help",
        "Proofread this text and write it out in full:\n\nThe lighthouse at Cape Rowan was built "
        "in 1871. Its tower is 34 metres high, and its lamp can be seen from 22 miles away. Three "
        "keepers lived there with their families until 1962, when the lamp was made automatic. "
        "Since then the house of the keepers has been a small museum, which is open from May to "
        "September.",
    ),
    Case(
        "story",
        "The answer is all new, so there is little to draft from",
        "Tell me a bedtime story about a fox who wants to fly.",
    ),
)

_INTRODUCTION = """\
{model} answers two prompts, each twice: plainly, one token per pass, and speculatively. Then
{drafts} ahead, {k}, and the model checks them all in one pass
and keeps those that it would have generated itself."""

_WHAT_NEXT = """\
A prompt of your own:  paceline generate --prompt "..."
Your own model:        model.generate(..., custom_generate=paceline.speculate())"""


def comparison_json(comparison: Comparison) -> dict[str, Any]:
    """A comparison as plain JSON values; the answers are those of the first timed pair."""
    difference = comparison.difference
    return {
        "name": comparison.case.name,
        "prompt": comparison.case.text,
        "identical": comparison.identical,
        "first_difference": None
        if difference is None
        else {
            "position": difference.position,
            "plain": difference.plain,
            "speculative": difference.speculative,
            "gap": difference.gap,
        },
        "speedup": comparison.speedup,
        "tokens_per_second": {
            "plain": typical_speed(comparison.plain),
            "speculative": typical_speed(comparison.speculative),
        },
        "plain": comparison.plain[0].to_json(),
        "speculative": comparison.speculative[0].to_json(),
    }


@options.takes(
    "num_draft_tokens",
    "draft_head",
    "max_tokens",
    before="repeats",
    max_tokens=DEFAULT_MAX_TOKENS,
)
def demo(
    shared: dict[str, Any],
    model: options.Model = DEFAULT_MODEL,
    repeats: Annotated[
        int,
        option(
            min=1,
            metavar="N",
            about="Timed pairs of answers for each prompt.",
            panel="Output",
        ),
    ] = 3,
    trace: Annotated[
        Path | None,
        option(
            metavar="FILE",
            about="Write the first timed pair for each prompt to a file, round by round: "
            "race.jsonl becomes race-quote.jsonl and race-story.jsonl.",
            panel="Output",
        ),
    ] = None,
    as_json: options.AsJson = False,
) -> None:
    """Decode two prompts plainly and speculatively, and compare tokens and speed.

    The model is downloaded if it is not there yet (98 MB). It runs in float32, greedily. The exit
    code is 0 only if both ways gave identical tokens.
    """
    files = {} if trace is None else {case.name: _file_for(trace, case) for case in CASES}
    for file in files.values():
        require_writable("--trace", file)
    given, draft_head = shared["num_draft_tokens"], shared["draft_head"]
    length: int | Literal["auto"] = "auto" if given is None else given
    if threads.give_way_where_busy():
        terminal.note("the machine is busy with other work; on a quiet one both ways are faster")
    with terminal.progress(f"loading {model}") as progress:
        import paceline
        from paceline.trace import Recording

        with terminal.transformers_is_quiet():
            target = paceline.load(model, dtype="float32", progress=progress)
    console = terminal.out()
    view: View = Silent() if as_json else Lines(console)
    if not as_json:
        introduction = _INTRODUCTION.format(
            model=target.name,
            drafts="n-grams of the text so far draft"
            if draft_head is None
            else f"n-grams of the text so far, or else the head {draft_head}, draft",
            k="as many tokens as pay" if length == "auto" else f"up to {length} tokens",
        )
        console.print(" ".join(introduction.split()), soft_wrap=not console.is_terminal)
        if console.is_terminal:
            view = Screen(console, repeats)
            if terminal.has_colour(console):
                console.print("Accepted draft tokens look like this.", style=terminal.ACCEPTED)
        console.print()
    found = []
    for number, case in enumerate(CASES, start=1):
        recording = Recording() if files else None
        with view.begin(number, case):
            comparison = compare(
                target,
                case,
                num_draft_tokens=length,
                max_tokens=shared["max_tokens"],
                repeats=repeats,
                draft_head=draft_head,
                recording=recording,
                show=view.show,
                step=view.step,
            )
        view.finish(comparison)
        found.append(comparison)
        if recording is not None:
            recording.write(files[case.name])
    identical = all(comparison.identical for comparison in found)
    if as_json:
        terminal.print_json(
            {
                "model": target.name,
                "dtype": "float32",
                "identical": identical,
                "prompts": [comparison_json(comparison) for comparison in found],
            }
        )
    else:
        console.print(_WHAT_NEXT, soft_wrap=True)
    print_written(list(files.values()))
    if not identical:
        raise typer.Exit(1)


def _file_for(trace: Path, case: Case) -> Path:
    """A trace holds one prompt, so each has a file of its own."""
    return trace.with_name(f"{trace.stem}-{case.name}{trace.suffix}")
