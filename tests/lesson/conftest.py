"""One browser for the tests of a module, and a fresh page for each."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.lesson.browser import chromium, launched, opened


@pytest.fixture(scope="module")  # while it is open its event loop runs in this thread
def browser() -> Iterator[Any]:
    if chromium() is None:
        reason = "Chromium is missing: scripts/install_browser.sh installs it on Debian"
        if os.environ.get("CI") == "true":
            pytest.fail(reason)
        pytest.skip(reason)
    with launched() as found:
        yield found


@pytest.fixture
def open_page(browser: Any) -> Iterator[Callable[..., Any]]:
    """Opens pages with the settings given; they close, and are asked for complaints, at the end."""
    with ExitStack() as stack:
        yield lambda *args, **options: stack.enter_context(opened(browser, *args, **options))


@pytest.fixture
def page(open_page: Callable[..., Any]) -> Any:
    return open_page()


@pytest.fixture(scope="module")
def still(browser: Any) -> Iterator[Any]:
    """A page for tests that only calculate in it."""
    with opened(browser) as found:
        yield found
