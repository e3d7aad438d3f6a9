"""How the commands print: consoles, JSON, notes, progress.

Answers go to standard output; everything else (progress, notes, errors, summaries) goes to
standard error, so that a pipe receives only the answer.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
)
from rich.spinner import Spinner
from rich.text import Text

if TYPE_CHECKING:
    from paceline.models.cache import Progress as ReportProgress

ACCEPTED = "green"
"""The style of text that came from an accepted draft token."""

_CONTROLS = dict.fromkeys({*range(0x20), *range(0x7F, 0xA0)} - {ord("\n"), ord("\t")})


def out() -> Console:
    """Standard output. Created at each call, since the stream may have been replaced."""
    return Console(highlight=False, markup=False, emoji=False)


def err() -> Console:
    """Standard error."""
    return Console(stderr=True, highlight=False, markup=False, emoji=False)


def has_colour(console: Console) -> bool:
    """Whether to use colours: on a terminal that has them, if NO_COLOR is not set."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def printable(text: str) -> str:
    """The text without control characters, which could control the terminal.

    Tabs and line ends stay.

    >>> printable("a" + chr(27) + "[2Jb")
    'a[2Jb'
    """
    return text.translate(_CONTROLS)


def print_json(value: Any) -> None:
    """One JSON value on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def error(message: str) -> None:
    """One line on standard error that says what is wrong."""
    one_line = " ".join(line.strip() for line in message.splitlines())
    err().print(Text.assemble(("error: ", "bold red"), printable(one_line)), soft_wrap=True)


def note(message: str) -> None:
    """One line on standard error that is not an error."""
    err().print(Text.assemble(("note: ", "bold"), printable(message)), soft_wrap=True)


def quantity(size_bytes: int) -> str:
    """A size in decimal units, as on download pages.

    >>> quantity(98_362_432), quantity(1_117_320_768), quantity(24_500)
    ('98 MB', '1.1 GB', '24 kB')
    """
    if 0 < size_bytes < 1e6:
        return f"{size_bytes / 1e3:.0f} kB" if size_bytes >= 1000 else f"{size_bytes} bytes"
    megabytes = size_bytes / 1e6
    return f"{megabytes:.0f} MB" if megabytes < 1000 else f"{megabytes / 1000:.1f} GB"


class _Notes(logging.Handler):
    """Shows what the library logs as notes."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


@contextmanager
def library_notes() -> Iterator[None]:
    """Show the library's own log on standard error while a command runs."""
    logger, handler = logging.getLogger("paceline"), _Notes(logging.WARNING)
    propagates = logger.propagate
    logger.addHandler(handler)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.propagate = propagates


@contextmanager
def transformers_is_quiet() -> Iterator[None]:
    """Suppress the progress bars and warnings of transformers while a model loads."""
    from transformers.utils import logging as theirs

    verbosity, bars = theirs.get_verbosity(), theirs.is_progress_bar_enabled()
    theirs.set_verbosity_error()
    theirs.disable_progress_bar()
    try:
        yield
    finally:
        theirs.set_verbosity(verbosity)
        if bars:
            theirs.enable_progress_bar()


@contextmanager
def progress(about: str) -> Iterator[ReportProgress]:
    """A progress reporter for slow steps: a bar on a terminal, elsewhere a line per new step.

    Args:
        about: what is going on while no step is reported; shown only on a terminal.
    """
    console = err()
    if not console.is_terminal:
        yield _Lines()
        return
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        DownloadColumn(),
        TimeRemainingColumn(compact=True),
        console=console,
    )
    picture = Group(Spinner("line", Text(about, style="dim")), bar)
    with Live(picture, console=console, transient=True, refresh_per_second=8):
        yield _Bar(bar)


class _Lines:
    """Reports each new step in a line."""

    def __init__(self) -> None:
        self._told: str | None = None

    def __call__(self, done: int, total: int, text: str) -> None:
        if text != self._told:
            self._told = text
            size = f" ({quantity(total)})" if total else ""
            err().print(f"{text}{size}", soft_wrap=True)


class _Bar:
    """Draws the current step while it lasts."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._step = bar.add_task("", total=None, visible=False)

    def __call__(self, done: int, total: int, text: str) -> None:
        over = 0 < total <= done
        self._bar.update(
            self._step, completed=done, total=total or None, description=text, visible=not over
        )
