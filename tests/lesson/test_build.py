"""The page as one file and as the files of a server."""

import hashlib
import re
from importlib.resources import files

from paceline.lesson import build_lesson, served_lesson
from paceline.lesson.build import _lean

PAGE = files("paceline.lesson").joinpath("page")
LIT_HTML_3_3_3 = "b878e7f95dec8a9b6e9b217faca6b6a11bad82ebc44c0caa77419ed83edd81f2"
MOST_BYTES = 350_000


def own_modules() -> set[str]:
    return {item.name for item in PAGE.joinpath("js").iterdir()}


def test_the_vendored_library_is_the_published_one_and_keeps_its_licence() -> None:
    folder = PAGE.joinpath("vendor/lit-html")
    assert hashlib.sha256(folder.joinpath("lit-html.js").read_bytes()).hexdigest() == LIT_HTML_3_3_3
    assert folder.joinpath("LICENSE").read_text().startswith("BSD 3-Clause License")


def test_the_single_file_names_every_module_and_no_other_place() -> None:
    page = build_lesson()
    assert len(page.encode()) <= MOST_BYTES
    named = set(re.findall(r'"lesson/([\w-]+\.js)": "data:text/javascript', page))
    assert named == own_modules() | {"lit-html.js"}
    assert "<!-- lesson:" not in page
    assert not re.search(r'(?:src|href)="(?!#|data:|https://)', page)
    assert '<link rel="stylesheet"' not in page


def test_a_server_is_given_every_file_that_the_page_names() -> None:
    assets, policy = served_lesson("/lesson")
    page = assets["/lesson"].content.decode()
    named = set(re.findall(r'"(/lesson/[^"]+)"', page))
    assert named == set(assets) - {"/lesson"}
    assert {f"/lesson/{name}" for name in own_modules()} <= set(assets)
    assert "'unsafe-inline'" not in policy
    assert "data:" not in policy.split("script-src")[1].split(";")[0]


def test_comments_are_left_out_whole() -> None:
    """A line of a comment that stayed would be code."""
    for text in ("/** One line. */\ncode;\n", "/**\n * Several,\n *\n * with a gap.\n */\ncode;\n"):
        assert _lean(text) == "code;\n"
    assert _lean("  // a line\n  code; // and a note\n\n") == "code; // and a note\n"
    for item in PAGE.joinpath("js").iterdir():
        for line in _lean(item.read_text(encoding="utf-8")).splitlines():
            assert not line.startswith(("*", "/*", "//")), f"{item.name}: {line}"
    notice = _lean(PAGE.joinpath("vendor/lit-html/lit-html.js").read_text(encoding="utf-8"))
    assert "Copyright 2017 Google LLC" in notice
    assert "SPDX-License-Identifier: BSD-3-Clause" in notice
