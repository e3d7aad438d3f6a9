"""Access: axe in every widget's states, keyboard, size of targets, widths, print, contrast."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.lesson.browser import opened

pytestmark = pytest.mark.browser

FILES = Path(__file__).parent.parent / "trace/files"
STANDARD = {
    "runOnly": {
        "type": "tag",
        "values": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22a", "wcag22aa"],
    }
}


def violations(page: Any, selector: str | None = None) -> list[str]:
    found = Axe().run(page, context=selector, options=STANDARD).response["violations"]
    return [
        f"{rule['id']}: {node['html'][:200]} {node['failureSummary'][:200]}"
        for rule in found
        for node in rule["nodes"]
    ]


def open_everything(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach((part) => (part.open = true))")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_whole_page(browser: Any, scheme: str) -> None:
    with opened(browser, color_scheme=scheme, reduced_motion="reduce") as page:
        open_everything(page)
        assert violations(page) == []


def order_wrong(page: Any) -> None:
    for slot, piece in enumerate((0, 2, 1, 3, 4)):
        page.locator(f'[data-piece="{piece}"]').click()
        page.locator(f'[data-slot="{slot}"]').click()
    page.locator("lesson-order").get_by_role("button", name="Check").click()


def order_holding(page: Any) -> None:
    page.locator("lesson-order [data-piece]").first.click()


def quiz_wrong(page: Any) -> None:
    page.locator("lesson-quiz [data-option]").first.focus()
    page.keyboard.press("1")


def quiz_over(page: Any) -> None:
    page.locator("lesson-quiz [data-option]").first.focus()
    for _ in range(20):
        page.keyboard.press("1")
        page.keyboard.press("Enter")


def lab_lossy_and_drawn(page: Any) -> None:
    page.locator("#lab-rule").select_option("typical")
    page.locator("lesson-lab").get_by_role("button", name="Add a token").click()
    page.locator("lesson-lab").get_by_role("button", name="Draw 200,000").click()


def race_refused(page: Any) -> None:
    page.locator("#race-file").set_input_files(FILES / "bad/not-json.jsonl")
    page.locator("lesson-race [data-error]").wait_for()


def race_midway(page: Any) -> None:
    for _ in range(3):
        page.locator("lesson-race").get_by_role("button", name="‹ Round").click()


def gain_losing(page: Any) -> None:
    page.locator("lesson-gain").get_by_role("button", name="Useless draft").click()


def stepper_at_the_test(page: Any) -> None:
    page.locator("lesson-stepper").get_by_role("button", name="Test").click()


def planner_measured(page: Any) -> None:
    page.locator("lesson-planner .segments").get_by_text("Measured passes").click()


def workloads_refused(page: Any) -> None:
    file = {"name": "own.json", "mimeType": "application/json", "buffer": b"{"}
    page.locator("#workloads-file").set_input_files(file)
    page.locator("lesson-workloads [data-message]").wait_for()


def rounds_of_a_chain(page: Any) -> None:
    page.locator("#rounds-trace").select_option("code")


STATES: list[tuple[str, Callable[[Any], None]]] = [
    ("order", order_wrong),
    ("order", order_holding),
    ("quiz", quiz_wrong),
    ("quiz", quiz_over),
    ("lab", lab_lossy_and_drawn),
    ("race", race_refused),
    ("race", race_midway),
    ("gain", gain_losing),
    ("stepper", stepper_at_the_test),
    ("planner", planner_measured),
    ("workloads", workloads_refused),
    ("rounds", rounds_of_a_chain),
]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_state_of_every_widget(browser: Any, scheme: str) -> None:
    with opened(browser, color_scheme=scheme, reduced_motion="reduce") as page:
        for widget, reach in STATES:
            page.evaluate("document.querySelector('lesson-order').again()")
            page.evaluate("document.querySelector('lesson-quiz').again()")
            reach(page)
            page.locator(f"lesson-{widget}").evaluate(
                "(w) => w.querySelectorAll('details').forEach((part) => (part.open = true))"
            )
            assert violations(page, f"lesson-{widget}") == [], reach.__name__


def colours() -> dict[str, tuple[str, str]]:
    text = files("paceline.lesson").joinpath("page/page.css").read_text(encoding="utf-8")
    pairs = re.findall(r"--([\w-]+): light-dark\((#\w{6}), (#\w{6})\)", text)
    return {name: (light, dark) for name, light, dark in pairs}


def luminance(colour: str) -> float:
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    high, low = sorted((luminance(one), luminance(other)), reverse=True)
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("mode", [0, 1])
def test_contrast_of_figures_which_axe_does_not_see(mode: int) -> None:
    every = {name: pair[mode] for name, pair in colours().items()}
    grounds = [every[name] for name in ("page", "panel", "field")]
    for name in ("ink", "muted", "accent", "good", "bad"):  # words
        assert min(contrast(every[name], ground) for ground in grounds) >= 4.5, name
    for name in ("grey", "edge", "accent", "bad", "good", "ink"):  # marks, bars and borders
        assert min(contrast(every[name], ground) for ground in grounds) >= 3, name
    assert contrast(every["on-accent"], every["accent"]) >= 4.5
    assert contrast(every["ink"], every["wash"]) >= 4.5
    # Bars that touch differ from one another.
    assert contrast(every["grey"], every["ink"]) >= 1.5


def test_tab_goes_through_the_page_and_the_focus_is_seen(open_page: Callable[..., Any]) -> None:
    page = open_page(reduced_motion="reduce")
    order: list[float] = []
    names: list[str] = []
    for _ in range(400):
        page.keyboard.press("Tab")
        found = page.evaluate(
            """() => {
              const element = document.activeElement;
              if (element === document.body) return null;
              const hidden = element.matches(".segments input");
              const shown = hidden ? element.nextElementSibling : element;
              const style = getComputedStyle(shown);
              const box = shown.getBoundingClientRect();
              const middle = box.y + Math.min(box.height / 2, 20);
              const hit = document.elementFromPoint(box.x + box.width / 2, middle);
              return {
                name: element.id || element.textContent.trim().slice(0, 30) || element.className,
                top: box.y + scrollY,
                inMain: element.closest("main") !== null,
                outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
                seen: box.bottom > 0 && box.y < innerHeight && hit !== null &&
                  (shown.contains(hit) || hit.contains(shown)),
              };
            }"""
        )
        if found is None:
            break
        names.append(found["name"])
        assert found["outlined"], found
        assert found["seen"], found
        if found["inMain"]:
            order.append(found["top"])
    else:
        raise AssertionError("Tab never leaves the page")
    assert names[0] == "Skip to the lesson"
    assert {"gain-k", "lab-rule", "planner-batch", "race-trace", "rounds-trace"} <= set(names)
    # Downwards, but for what stands side by side.
    assert all(after > before - 700 for before, after in itertools.pairwise(order))
    assert sorted(order)[-1] == order[-1]


def test_targets_are_large_enough(open_page: Callable[..., Any]) -> None:
    page = open_page(width=320)
    open_everything(page)
    small = page.evaluate(
        """() => [...document.querySelectorAll(
              "button, select, summary, input:not([type=radio]), .segments label, nav a")]
          .filter((target) => target.offsetParent !== null)
          .map((target) => [target.outerHTML.slice(0, 80), target.getBoundingClientRect()])
          .filter(([, box]) => box.width < 24 || box.height < 24)
          .map(([html, box]) => `${html} ${box.width} x ${box.height}`)"""
    )
    assert small == []


@pytest.mark.parametrize("scale", [100, 200])
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_nothing_needs_scrolling_sideways(
    open_page: Callable[..., Any], width: int, scale: int
) -> None:
    page = open_page(width=width)
    page.evaluate(f"document.documentElement.style.fontSize = '{scale}%'")
    open_everything(page)
    page.locator("#lab-rule").select_option("typical")
    page.wait_for_timeout(150)
    wide = page.evaluate(
        """() => [...document.querySelectorAll("body *")]
          .filter((e) => !e.closest(".scroll, .unseen, .stream, .formula, .skip, pre, head"))
          .filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth + 1)
          .map((e) => e.outerHTML.slice(0, 90))"""
    )
    scrolled = page.evaluate("document.documentElement.scrollWidth")
    assert scrolled <= page.evaluate("document.documentElement.clientWidth"), wide[:5]
    assert wide == []


def test_print_has_tables_and_answers_and_no_buttons(page: Any) -> None:
    page.emulate_media(media="print")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    assert page.locator("details:not([open])").count() == 0
    for selector in ("button:visible", "select:visible", "nav:visible", "input:visible"):
        assert page.locator(selector).count() == 0, selector
    assert page.locator("#gain table:visible").count() >= 4
    assert page.get_by_text("Token x comes out in two ways").is_visible()
    questions = page.locator("lesson-quiz .forprint > li")
    assert questions.count() == 20
    assert questions.last.get_by_text("Stern and Xia came before").is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")
    page.emulate_media(media="screen")
    assert page.locator("details:not([open])").count() > 10
    assert page.locator("lesson-quiz .forprint").is_hidden()
    assert page.pdf()[:5] == b"%PDF-"


def test_the_reader_chooses_light_or_dark(open_page: Callable[..., Any]) -> None:
    page = open_page(color_scheme="dark")
    ground = lambda: page.evaluate("getComputedStyle(document.body).backgroundColor")  # noqa: E731
    dark = ground()
    page.locator(".themes").get_by_text("Light").click()
    light = ground()
    page.locator(".themes").get_by_text("Auto").click()
    assert (dark, light, ground()) == ("rgb(20, 23, 27)", "rgb(255, 255, 255)", "rgb(20, 23, 27)")
