"""Reports show what they were given, in every form, and need nothing from elsewhere."""

from __future__ import annotations

import io
import re
import xml.etree.ElementTree as ET
from html.parser import HTMLParser
from pathlib import Path

import pytest
from rich.console import Console

from paceline.errors import InvalidInput
from paceline.workbench.report import (
    Code,
    Definitions,
    Figure,
    Outputs,
    Report,
    Section,
    Table,
    Text,
    Verdict,
    figures,
    to_html,
    to_markdown,
)
from paceline.workbench.report import console as on_console
from paceline.workbench.report.html import COLOURS
from paceline.workbench.report.layout import folded, wrapped

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Checker(HTMLParser):
    """Holds the tags against one another and collects what is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.links += [
            values[name] or "" for name in ("src", "href", "xlink:href") if name in values
        ]
        self.ids += [values["id"] or ""] if "id" in values else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" not in self.open:
            self.text.append(data)


def some_figures() -> list[Figure]:
    values = {
        "ngram k=4": {"writing": (1.1, 0.9, 1.3), "coding & more": (2.0, None, None)},
        "model k=<4>": {"writing": (1.5, 1.6, 1.7)},
    }
    made = {
        "speed": figures.intervals(values, label="speed-up", reference=1.0),
        "time": figures.stacked(
            {"a": {"draft": 1.0, "target": 2.0}, "b" * 90: {"target": 3.0}}, label="s"
        ),
        "place": figures.lines(
            {"a": [(1, (0.9, 0.8, 1.0)), (2, (0.5, None, None))]}, x_label="x", y_label="y"
        ),
        "both": figures.against({"a": [(1.0, 1.1)], "b": []}, x_label="p", y_label="m"),
    }
    return [
        Figure(f"Figure {key}", figures.inline_svg(figure, key, 'what "it" <shows>'), "Read it.")
        for key, figure in made.items()
    ]


def a_report(plots: list[Figure]) -> Report:
    blocks = (
        Verdict("bad", "fault", "Tokens `1 < 2` differ."),
        Text("Some <script>alert(1)</script> text & `code`."),
        Table(("method", "speed-up"), (("a|b\nc", "1.52"), ("<i>", ""))),
        Code("paceline bench --model 'x'"),
        Definitions((("tau", "tokens a pass"),)),
    )
    return Report("A <title>", "A lead.", [Section("One", blocks), Section("Plots", tuple(plots))])


def test_html_is_well_formed_shows_everything_and_links_nowhere() -> None:
    html = to_html(a_report(some_figures()))
    checker = Checker()
    checker.feed(html)
    checker.close()
    assert checker.open == []
    shown = " ".join("".join(checker.text).split())
    for part in ("A <title>", "fault", "<script>alert(1)</script>", "1.52", "coding & more", "tau"):
        assert part in shown
    assert all(link.startswith(("#", "data:")) for link in checker.links)
    assert not re.findall(r"url\((?!#)|@import|<script", html)
    assert len(set(checker.ids)) == len(checker.ids)
    assert 'name="viewport"' in html
    assert "prefers-color-scheme:dark" in html


def test_references_within_a_figure_are_to_its_own_ids() -> None:
    for figure in some_figures():
        ids = set(re.findall(r'\bid="([^"]+)"', figure.svg))
        found = re.findall(r'url\(#([^)]+)\)|href="#([^"]+)"', figure.svg)
        assert {one or other for one, other in found} <= ids
        assert found


def test_figures_take_all_their_colours_from_the_page() -> None:
    for figure in some_figures():
        ET.fromstring(figure.svg)
        assert not re.findall(r"#[0-9a-f]{6}\b", figure.svg)
        assert set(re.findall(r"var\(--(\w+)\)", figure.svg)) <= set(COLOURS)


def test_a_figure_can_stand_alone() -> None:
    figure = figures.stacked({"a": {"x": 1.0}}, label="s")
    text = figures.standalone_svg(figure)
    ET.fromstring(text)
    assert "var(" not in text
    assert COLOURS["s0"][0] in text


def _luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("behind", ["page", "panel"])
def test_colours_have_contrast_in_both_modes(place: int, behind: str) -> None:
    """WCAG 2.1: 4.5 to 1 for text, 3 to 1 for what is plotted."""
    ground = _luminance(COLOURS[behind][place])
    for name, pair in COLOURS.items():
        if name in ("page", "panel", "line"):
            continue
        lighter, darker = sorted((_luminance(pair[place]), ground), reverse=True)
        needed = 3.0 if name.startswith("s") else 4.5
        assert (lighter + 0.05) / (darker + 0.05) >= needed, name


def test_markdown_holds_tables_and_text_but_no_empty_section() -> None:
    text = to_markdown(a_report(some_figures()))
    assert "| a\\|b c | 1.52 |" in text
    assert "|---|---:|" in text
    assert "**fault**: Tokens `1 < 2` differ." in text
    assert "## Plots" not in text


def test_a_terminal_shows_the_same() -> None:
    console = Console(width=60, record=True, file=io.StringIO())
    for section in a_report([]).sections:
        on_console.show(console, section)
    shown = console.export_text()
    for part in ("fault: Tokens 1 < 2 differ.", "speed-up", "1.52", "tau: tokens a pass"):
        assert part in shown


def test_a_table_needs_full_rows() -> None:
    with pytest.raises(InvalidInput, match="2 columns"):
        Table(("a", "b"), (("1",),))


def test_paths_are_checked_before_the_work(tmp_path: Path) -> None:
    kept = tmp_path / "kept.html"
    kept.write_text("old")
    outputs = Outputs({"--html": kept, "--markdown": tmp_path / "new.md", "--json": None})
    assert kept.read_text() == "old"
    assert not (tmp_path / "new.md").exists()
    written = outputs.write({"--html": "new", "--markdown": lambda: "text", "--json": ""})
    assert written == [kept, tmp_path / "new.md"]
    assert (kept.read_text(), (tmp_path / "new.md").read_text()) == ("new", "text")


def test_paths_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match=r"--html: cannot write .*: there is no folder"):
        Outputs({"--html": tmp_path / "none" / "a.html"})
    with pytest.raises(InvalidInput, match=r"--html: cannot write .*: Is a directory"):
        Outputs({"--html": tmp_path})
    with pytest.raises(InvalidInput, match="--html and --markdown both name"):
        Outputs({"--html": tmp_path / "a", "--markdown": tmp_path / "." / "a"})


WIDE = Table(
    ("method", "speed-up over plain", "95\N{NO-BREAK SPACE}%", *(f"column {n}" for n in range(9))),
    (
        (
            "model,draft=some-model,storage=int4,k=5",
            *(f"{n}.25 ({n}.00-{n}.50)" for n in range(11)),
        ),
        ("none", *[""] * 11),
    ),
    caption="A caption.",
)


@pytest.mark.parametrize("width", [40, 80, 120, 400])
def test_tables_fold_below_one_another_and_lose_nothing(width: int) -> None:
    parts = folded(WIDE, width)
    console = Console(width=width, record=True, file=io.StringIO())
    on_console.show_table(console, WIDE)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= width
    assert "…" not in shown
    for cell in WIDE.rows[0][1:]:
        assert cell in shown
    for header in WIDE.headers:
        assert all(word in shown for word in header.split(" "))
    assert [cell for part in parts for cell in part.rows[0][1:]] == list(WIDE.rows[0][1:])
    assert shown.count("A caption.") == 1
    assert len(parts) == 1 if width == 400 else len(parts) > 1


def test_a_name_is_broken_at_its_settings() -> None:
    assert wrapped("ngram+model,draft=D,k=4", 14).split("\n") == ["ngram+model,", "draft=D,k=4"]
    assert "".join(wrapped("x" * 40, 16).split("\n")) == "x" * 40
    assert max(map(len, wrapped("x" * 40, 16).split("\n"))) == 16
