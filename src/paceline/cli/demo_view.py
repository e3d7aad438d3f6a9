"""The output of `paceline demo`: growing panels on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Protocol

from rich.console import Console
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from paceline.cli import render, terminal
from paceline.cli.comparison import Case, Comparison, Difference, typical_speed

if TYPE_CHECKING:
    from paceline.generate.api import Generation, Piece

SAME = 0.05
"""A speed-up this close to 1 is called no difference: repeated timings vary as much."""

_NARROW = 70
"""Below this many columns, the panels are shown one above the other."""


def verdict(comparison: Comparison) -> str:
    """The result for one prompt, in words."""
    return f"{_speed_in_words(comparison)} {_tokens_in_words(comparison.difference)}"


def _speed_in_words(comparison: Comparison) -> str:
    speedup, pairs = comparison.speedup, comparison.speedups
    if speedup is None:
        return "No tokens were generated."
    if min(pairs) < 1 - SAME and max(pairs) > 1 + SAME:
        return (
            f"The timings disagree: speculation ran at {min(pairs):.2f} to {max(pairs):.2f} times "
            "the speed of plain decoding. The machine is busy with something else; try again."
        )
    if speedup > 1 + SAME:
        return f"Speculation was {speedup:.2f} times as fast as plain decoding."
    if speedup < 1 - SAME:
        tokens = comparison.speculative[0].spec["mean_acceptance_length"]
        return (
            f"Speculation was SLOWER than plain decoding here ({speedup:.2f} times its speed): a "
            f"round gave {tokens:.2f} tokens and took {tokens / speedup:.2f} times as long."
        )
    return f"Speculation made no difference to the speed here ({speedup:.2f} times)."


def _tokens_in_words(difference: Difference | None) -> str:
    if difference is None:
        return "The tokens are identical."
    why = (
        "a near-tie, which rounding may decide either way"
        if difference.is_near_tie
        else "more than rounding explains: please report this as a fault"
    )
    return (
        f"The tokens are NOT identical: they diverge at token {difference.position + 1}, where "
        f"plain decoding has {difference.plain!r} and speculation {difference.speculative!r}. The "
        f"two best logits are {difference.gap:.2g} apart there: {why}."
    )


def speed_caption(generations: Sequence[Generation]) -> str:
    """The speed of the answers and the tokens per round, in two short lines."""
    rate, spec = typical_speed(generations), generations[0].spec
    length, accepted = spec["mean_acceptance_length"], spec["draft_acceptance_rate"]
    return "\n".join(
        [
            "no tokens" if rate is None else f"{rate:.1f} tokens/s",
            ("no rounds" if length is None else f"{length:.2f} tokens per round")
            + ("" if accepted is None else f", {accepted:.0%} accepted"),
        ]
    )


class View(Protocol):
    """The display of the running demo."""

    def begin(self, number: int, case: Case) -> AbstractContextManager[object]:
        """Show a prompt; the context lasts while it is being answered."""
        ...

    def show(self, kind: str, pieces: Sequence[Piece]) -> None:
        """Show an answer so far; `kind` is plain or speculative."""
        ...

    def step(self, repeat: int) -> None:
        """Show that a timed pair begins."""
        ...

    def finish(self, comparison: Comparison) -> None:
        """Show the result for the prompt."""
        ...


class Silent:
    """Shows only the steps, on standard error, for JSON output."""

    def begin(self, number: int, case: Case) -> AbstractContextManager[object]:
        """See `View.begin`."""
        terminal.err().print(f"prompt {number}: {case.name}")
        return nullcontext()

    def show(self, kind: str, pieces: Sequence[Piece]) -> None:
        """See `View.show`."""

    def step(self, repeat: int) -> None:
        """See `View.step`."""
        _print_step(repeat)

    def finish(self, comparison: Comparison) -> None:
        """See `View.finish`."""


def _print_step(repeat: int) -> None:
    terminal.err().print(f"  timing pair {repeat}")


class Lines:
    """Plain lines, for a file or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def begin(self, number: int, case: Case) -> AbstractContextManager[object]:
        """See `View.begin`."""
        self._print(f"Prompt {number}. {case.title}.", _quoted(case.text))
        return nullcontext()

    def show(self, kind: str, pieces: Sequence[Piece]) -> None:
        """See `View.show`."""

    def step(self, repeat: int) -> None:
        """See `View.step`."""
        _print_step(repeat)

    def finish(self, comparison: Comparison) -> None:
        """See `View.finish`."""
        plain, speculative = comparison.plain, comparison.speculative
        lines = [f"plain: {_one_line(speed_caption(plain))}"]
        if comparison.difference is not None:
            lines.append(_quoted(plain[0].text))
        lines.append(f"speculative (ngram): {_one_line(speed_caption(speculative))}")
        self._print(*lines, _quoted(speculative[0].text), verdict(comparison), "")

    def _print(self, *lines: str) -> None:
        for line in lines:
            self._console.print(line, soft_wrap=True)


def _one_line(text: str) -> str:
    return ", ".join(text.splitlines())


def _quoted(text: str) -> str:
    return "\n".join(f"  | {line}" for line in text.splitlines())


class Screen:
    """Two panels side by side, which fill as the answers come."""

    def __init__(self, console: Console, repeats: int) -> None:
        self._console, self._repeats = console, repeats
        # Refreshed by hand, so that no extra thread takes time from what is being timed.
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._texts = {"plain": Text(), "speculative": Text()}

    def begin(self, number: int, case: Case) -> AbstractContextManager[object]:
        """See `View.begin`."""
        self._console.rule(Text(f"Prompt {number}"), align="left")
        self._console.print(Text(case.title, style="bold"))
        self._console.print(Text(case.text, style="dim italic"))
        self._texts = {"plain": Text(), "speculative": Text()}
        self._live = Live(console=self._console, auto_refresh=False, transient=True)
        return self._live

    def show(self, kind: str, pieces: Sequence[Piece]) -> None:
        """See `View.show`."""
        self._texts[kind] = render.answer_text(pieces)
        self._draw({kind: "answering\n"})

    def step(self, repeat: int) -> None:
        """See `View.step`."""
        timing = f"timing, {repeat} of {self._repeats}\n"
        self._draw({"plain": timing, "speculative": timing})

    def finish(self, comparison: Comparison) -> None:
        """See `View.finish`."""
        texts = {
            "plain": render.answer_text(comparison.plain_pieces),
            "speculative": render.answer_text(comparison.speculative_pieces),
        }
        captions = {
            "plain": speed_caption(comparison.plain),
            "speculative": speed_caption(comparison.speculative),
        }
        self._console.print(panels(texts, captions, self._console.width))
        style = "bold" if comparison.identical else "bold red"
        self._console.print(Text(verdict(comparison), style=style))
        self._console.print()

    def _draw(self, captions: dict[str, str]) -> None:
        self._live.update(panels(self._texts, captions, self._console.width), refresh=True)


def panels(texts: dict[str, Text], captions: dict[str, str], width: int) -> Table:
    """Both answers in panels: side by side, or one above the other on a narrow terminal."""
    table = Table.grid(expand=True)
    found: list[Any] = []
    for kind, title in (("plain", "plain"), ("speculative", "speculative (ngram)")):
        caption = Text(captions.get(kind, "") or " ", style="dim")
        body = Table.grid()
        body.add_row(texts[kind])
        body.add_row(caption)
        found.append(Panel(body, title=title, title_align="left"))
    if width < _NARROW:
        for panel in found:
            table.add_row(panel)
    else:
        table.add_column(ratio=1)
        table.add_column(ratio=1)
        table.add_row(*found)
    return table
