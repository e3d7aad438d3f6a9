"""The lesson page put together: as one file that needs nothing else, or as files for a server.

The modules of the page import one another by bare names, and an import map says where each name is:
a path on a server, or a `data:` URL in the single file, since a browser loads no external module
from `file://`. So both forms run the same text.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from urllib.parse import quote

ENTRY = 'import "lesson/main.js";'

# What a data: URL may hold as it is. Line ends are not among it: a browser drops them.
_PLAIN = " !\"$&'()*+,-./:;<=>?@[]^_`{|}~\\"


# One that begins a line; the rest of its last line stays. A licence's notice stays with its code.
_BLOCK_COMMENT = re.compile(r"^[ \t]*/\*(?!\*\s*\*\s*@license).*?\*/", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as a server sends it."""

    content: bytes
    media_type: str


def build_lesson() -> str:
    """The lesson as one HTML file: no network, no other file, works from `file://`.

    Example:
        >>> page = build_lesson()
        >>> page.startswith("<!doctype html>"), "https://unpkg" in page
        (True, False)
    """
    style = _page("page.css")
    modules = _import_map(
        # Its name at the end is what a browser's console shows in place of all the text.
        (name, _data_url(f"{_lean(text)}//# sourceURL={name}"))
        for name, text in _modules()
    )
    policy = (
        f"default-src 'none'; script-src {_hash(modules)} {_hash(ENTRY)} data:; "
        f"style-src {_hash(style)}; img-src data:; base-uri 'none'; form-action 'none'"
    )
    return _filled(
        policy=f'<meta http-equiv="Content-Security-Policy" content="{policy}">',
        style=f"<style>{style}</style>",
        data=_data(),
        modules=_scripts(modules),
    )


def served_lesson(root: str = "/lesson") -> tuple[dict[str, Asset], str]:
    """The lesson as files for a server, which offers live rounds under the same root.

    Args:
        root: the path of the page, without a slash at its end.

    Returns:
        The files by path, the page itself at `root`; and the Content-Security-Policy to send with
        it, under which nothing is loaded from another origin.
    """
    places = {name: f"{root}/{name.removeprefix('lesson/')}" for name, _ in _modules()}
    modules = _import_map(places.items())
    page = _filled(
        policy=f'<meta name="paceline-live" content="{root}">',
        style=f'<link rel="stylesheet" href="{root}/page.css">',
        data=_data(),
        modules=_scripts(modules),
    )
    policy = (
        f"default-src 'none'; script-src 'self' {_hash(modules)} {_hash(ENTRY)}; "
        "style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'"
    )
    assets = {root: Asset(page.encode(), "text/html; charset=utf-8")}
    assets[f"{root}/page.css"] = Asset(_page("page.css").encode(), "text/css; charset=utf-8")
    for name, text in _modules():
        assets[places[name]] = Asset(text.encode(), "text/javascript; charset=utf-8")
    return assets, policy


def _page(name: str) -> str:
    return _folder().joinpath(name).read_text(encoding="utf-8")


def _folder() -> Traversable:
    return files("paceline.lesson").joinpath("page")


def _modules() -> list[tuple[str, str]]:
    """The page's modules: the name that others import, and the text."""
    own = sorted(_named("js", ".js"))
    return [
        ("lesson/lit-html.js", _page("vendor/lit-html/lit-html.js")),
        *((f"lesson/{name}", _page(f"js/{name}")) for name in own),
    ]


def _named(folder: str, ending: str) -> list[str]:
    return [
        item.name for item in _folder().joinpath(folder).iterdir() if item.name.endswith(ending)
    ]


def _lean(text: str) -> str:
    """A module without indentation, empty lines and lines of comment: a tenth of the file less."""
    without = _BLOCK_COMMENT.sub("", text)
    lines = (line.strip() for line in without.splitlines())
    kept = (line for line in lines if line and not line.startswith("//"))
    return "".join(f"{line}\n" for line in kept)


def _data_url(text: str) -> str:
    return f"data:text/javascript;charset=utf-8,{quote(text, safe=_PLAIN)}"


def _import_map(places: Iterable[tuple[str, str]]) -> str:
    return _inert(json.dumps({"imports": dict(places)}, ensure_ascii=False))


def _data() -> str:
    """Recorded rounds and measurements, as JSON or JSON lines that the page reads by their id."""
    return "\n".join(
        f'<script type="application/json" id="data-{name.partition(".")[0]}">\n'
        f"{_inert(_page(f'data/{name}')).strip()}\n</script>"
        for name in sorted(_named("data", ".json") + _named("data", ".jsonl"))
    )


def _inert(text: str) -> str:
    """JSON in which no tag can begin, the end of its own script element included."""
    return text.replace("<", "\\u003c")


def _scripts(modules: str) -> str:
    return f'<script type="importmap">{modules}</script>\n<script type="module">{ENTRY}</script>'


def _filled(**parts: str) -> str:
    page = _page("index.html")
    for name, part in parts.items():
        page = page.replace(f"<!-- lesson:{name} -->", part)
    return page


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"'sha256-{base64.b64encode(digest).decode()}'"
