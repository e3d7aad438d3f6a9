"""Progress bars for counted steps: how many are done, and the remaining time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.cli import terminal

Step = Callable[[str], None]
"""Called before each run with its description."""

ReportProgress = Callable[[int, int, str], None]
"""Called with (done, total, what); each `what` is a step that goes from 0 to its total."""


@contextmanager
def counting(total: int) -> Iterator[Step]:
    """A bar on a terminal; elsewhere a line after every tenth.

    A step is reported before it is taken, so the last one is done when the block ends.
    """
    console = terminal.err()
    done = -1
    if not console.is_terminal:

        def line(text: str) -> None:
            nonlocal done
            done += 1
            if done and done * 10 // total > (done - 1) * 10 // total:
                console.print(f"{done} of {total} runs", soft_wrap=True)

        yield line
        if done + 1 == total:
            line("")
        return
    with _bar(console) as progress:
        task = progress.add_task("", total=total)

        def step(text: str) -> None:
            nonlocal done
            done += 1
            progress.update(task, completed=done, description=terminal.printable(text))

        yield step


@contextmanager
def steps() -> Iterator[ReportProgress]:
    """A progress reporter for named steps: bars on a terminal, elsewhere one line each."""
    console = terminal.err()
    if not console.is_terminal:
        shown: list[str] = []

        def progress(done: int, total: int, text: str) -> None:
            if text not in shown:
                shown.append(text)
                console.print(text, soft_wrap=True)

        yield progress
        return
    bar = _bar(console)
    tasks: dict[str, int] = {}

    def draw(done: int, total: int, text: str) -> None:
        if text not in tasks:
            tasks[text] = bar.add_task(text, total=total)
        bar.update(tasks[text], completed=done, total=total)  # type: ignore[arg-type]

    with bar:
        yield draw


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
        transient=True,
    )
