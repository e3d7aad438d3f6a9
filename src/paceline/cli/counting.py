"""A bar for many runs: how many are done, and the time that is left."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.cli import terminal

Step = Callable[[str], None]
"""Called before each run with what it is."""


@contextmanager
def counting(total: int) -> Iterator[Step]:
    """A bar on a terminal; elsewhere a line at every tenth of the way."""
    console = terminal.err()
    done = -1
    if not console.is_terminal:

        def line(text: str) -> None:
            nonlocal done
            done += 1
            if done and done * 10 // total > (done - 1) * 10 // total:
                console.print(f"{done} of {total} runs", soft_wrap=True)

        yield line
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TimeRemainingColumn(compact=True),
    )
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)

        def step(text: str) -> None:
            nonlocal done
            done += 1
            progress.update(task, completed=done, description=terminal.printable(text))

        yield step
