"""`paceline lesson`: the page that teaches the method, written to a file and opened."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from paceline.cache_folder import cache_folder
from paceline.checks import require_writable
from paceline.cli import terminal
from paceline.cli.calls import print_written
from paceline.cli.options import option
from paceline.errors import InvalidInput

Html = Annotated[
    Path | None,
    option(
        "--html",
        metavar="FILE",
        panel="Output",
        about="Only write the page to a file, which needs no other file and no network.",
    ),
]


def lesson(html: Html = None) -> None:
    """Learn speculative decoding on one page: touch it, see it run, check that it is exact.

    Opens the page in your browser. It works without a network; `paceline serve` offers it with live
    rounds of a model.
    """
    file = cache_folder() / "lesson.html" if html is None else html
    if html is None:
        _make_folder(file.parent)
    require_writable("--html", file)
    from paceline.lesson import build_lesson

    try:
        file.write_text(build_lesson(), encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"--html: cannot write {file}: {error.strerror}") from error
    print_written([file])
    if html is None and not webbrowser.open(file.resolve().as_uri()):
        terminal.note(f"no browser was found here; open {file} in one, on any machine")


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidInput(
            f"cannot make the folder {folder}: {error.strerror}; name a file with --html, or "
            "another folder with PACELINE_CACHE"
        ) from error
