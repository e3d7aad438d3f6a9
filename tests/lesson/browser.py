"""Chromium, and the lesson opened in it as one file without a network."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, Page, sync_playwright

from paceline.lesson import build_lesson

FLAGS = [
    "--no-sandbox",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
PATIENCE_MS = 180_000
"""A busy machine must not fail a test."""

EXPECTED: tuple[str, ...] = ()
"""How complaints begin that a test expects of the browser."""


def chromium() -> str | None:
    """The browser's path; None if there is none."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextmanager
def launched() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=chromium(), args=FLAGS, timeout=PATIENCE_MS
        )
        yield browser
        browser.close()


@contextmanager
def opened(
    browser: Browser,
    address: str | None = None,
    *,
    fragment: str = "",
    width: int = 1280,
    offline: bool = True,
    **options: Any,
) -> Iterator[Page]:
    """The page at an address, or else the single file from disk; it must not complain."""
    with tempfile.TemporaryDirectory() as folder:
        if address is None:
            file = Path(folder) / "lesson.html"
            file.write_text(build_lesson(), encoding="utf-8")
            address = file.as_uri()
        context = browser.new_context(
            viewport={"width": width, "height": 900}, offline=offline, **options
        )
        context.set_default_timeout(PATIENCE_MS)
        page = context.new_page()
        complaints: list[str] = []
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(f"{error}\n{error.stack}"))
        page.goto(address + (f"#{fragment}" if fragment else ""))
        yield page
        context.close()
        assert [text for text in complaints if not text.startswith(EXPECTED or "\0")] == []
