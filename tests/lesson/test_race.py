"""Recorded runs: replayed, stepped, compared; trees; and files that are no traces."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

from paceline.trace import parse_trace

pytestmark = pytest.mark.browser

DATA = files("paceline.lesson").joinpath("page/data")
FILES = Path(__file__).parent.parent / "trace/files"
BAD = json.loads((FILES / "bad/expected.json").read_text())
BUNDLED = ["code", "copy", "prose", "tree", "coupling"]


def race(page: Any) -> Any:
    return page.locator("lesson-race")


def lane(page: Any, name: str) -> Any:
    return race(page).locator(f'[data-lane="{name}"]')


def read_lane(page: Any, name: str) -> dict[str, Any]:
    """What a lane shows: the text that stays, the tokens struck out, and its figures."""
    found: dict[str, Any] = lane(page, name).evaluate(
        """(lane) => {
          const stream = lane.querySelector(".stream").cloneNode(true);
          const struck = stream.querySelectorAll("del").length;
          stream.querySelectorAll(".refused, .bonus sup").forEach((part) => part.remove());
          const figures = Object.fromEntries([...lane.querySelectorAll("dd")].map(
            (figure) => [figure.dataset.value, figure.textContent.trim()]));
          // What stands around the text is the template's own white space.
          return { text: stream.textContent, struck, figures };
        }"""
    )
    return found


def verdict(page: Any) -> str:
    text: str = race(page).locator("[data-verdict]").inner_text()
    return text


NUMBERS = itertools.count()


def give(page: Any, text: str) -> None:
    """Open a trace, and wait until the page names its file: as opened, or as refused."""
    name = f"trace-{next(NUMBERS)}.jsonl"
    file = {"name": name, "mimeType": "application/jsonl", "buffer": text.encode()}
    page.locator("#race-file").set_input_files(file)
    page.wait_for_function(
        "(name) => document.querySelector('lesson-race').textContent.includes(name)", arg=name
    )


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_trace_replays_to_its_end(page: Any, name: str) -> None:
    trace = parse_trace(DATA.joinpath(f"{name}.jsonl").read_text(encoding="utf-8"))
    page.locator("#race-trace").select_option(name)
    for side, recorded in trace.lanes.items():
        shown = read_lane(page, side)
        metrics = recorded.metrics
        assert shown["text"].strip() == (recorded.text or "").strip()
        refused = metrics.num_draft_tokens - sum(
            len(event.draft.path) for event in recorded.rounds if event.draft is not None
        )
        assert shown["struck"] == refused
        figures = shown["figures"]
        assert figures["target passes"] == str(len(recorded.rounds))
        assert figures["tokens a round"] == f"{metrics.num_tokens / len(recorded.rounds):.2f}"
        assert figures["tokens/s"] == f"{recorded.tokens_per_second:.1f}"
        if metrics.num_draft_tokens:
            kept = metrics.counts.num_accepted_tokens
            assert figures["kept / drafted"] == f"{kept} / {metrics.num_draft_tokens}"
    plain, fast = trace.lanes["plain"], trace.lanes["speculative"]
    ratio = (fast.tokens_per_second or 0) / (plain.tokens_per_second or 1)
    said = "times as fast" if ratio > 1.005 else "slower" if ratio < 0.995 else "equally fast"
    assert said in verdict(page)
    assert ("The two texts are the same" in verdict(page)) == (plain.tokens == fast.tokens)


def test_a_run_loses_and_it_is_said(page: Any) -> None:
    page.locator("#race-trace").select_option("prose")
    assert "slower on this prompt" in verdict(page)


def test_stepping_and_scrubbing(page: Any) -> None:
    give(page, (FILES / "good/race.jsonl").read_text())
    back = race(page).get_by_role("button", name="‹ Round")
    forward = race(page).get_by_role("button", name="Round ›")
    passes = lambda: read_lane(page, "speculative")["figures"]["target passes"]  # noqa: E731
    total = int(passes())
    back.click()
    assert passes() == str(total - 1)
    assert race(page).locator("[data-verdict]").is_hidden()
    for _ in range(total):
        back.click()
    assert passes() == "0"
    assert read_lane(page, "plain")["text"].strip() == ""
    forward.click()
    assert passes() == "1"
    scrub = race(page).locator(".scrub input")
    scrub.evaluate(
        "(range) => { range.value = range.max; range.dispatchEvent(new Event('input')); }"
    )
    assert passes() == str(total)
    assert race(page).locator("[data-verdict]").is_visible()


def test_playing_comes_to_the_end(page: Any) -> None:
    give(page, (FILES / "good/race.jsonl").read_text())
    race(page).locator(".segments").get_by_text("×4").click()
    race(page).get_by_role("button", name="Play").click()
    page.wait_for_function("() => !document.querySelector('lesson-race').playing")
    assert race(page).get_by_role("button", name="Play").is_visible()
    assert race(page).locator("[data-verdict]").is_visible()


def test_with_reduced_motion_the_end_is_shown_and_nothing_moves(
    open_page: Callable[..., Any],
) -> None:
    page = open_page(reduced_motion="reduce")
    back = race(page).get_by_role("button", name="‹ Round")
    back.click()
    race(page).get_by_role("button", name="Play").click()
    assert race(page).locator("[data-verdict]").is_visible()
    assert page.evaluate("document.querySelector('lesson-race').playing") is False
    page.locator("lesson-gain").get_by_role("button", name="Perfect draft").click()
    assert page.evaluate("document.getAnimations().length") == 0
    assert page.evaluate("getComputedStyle(document.documentElement).scrollBehavior") == "auto"


@pytest.mark.parametrize("name", sorted(path.stem for path in (FILES / "good").iterdir()))
def test_what_python_reads_the_page_reads(page: Any, name: str) -> None:
    text = (FILES / f"good/{name}.jsonl").read_text()
    give(page, text)
    assert race(page).locator("[data-error]").count() == 0
    for side, recorded in parse_trace(text).lanes.items():
        shown = read_lane(page, side)
        assert shown["figures"]["target passes"] == str(len(recorded.rounds))
        if recorded.text is not None:
            assert shown["text"].strip() == recorded.text.strip()


def test_bad_traces_are_refused_by_line_and_the_page_goes_on(page: Any) -> None:
    before = read_lane(page, "speculative")
    assert len(BAD) >= 12
    for name, expected in BAD.items():
        give(page, (FILES / f"bad/{name}.jsonl").read_text())
        message = race(page).locator("[data-error]").inner_text()
        assert f"line {expected['line']}: " in message, name
        assert expected["about"] in message, (name, message)
        assert read_lane(page, "speculative") == before
    give(page, (FILES / "good/race.jsonl").read_text())
    assert race(page).locator("[data-error]").count() == 0
    assert read_lane(page, "speculative") != before


def test_a_difference_at_temperature_0_is_shown(page: Any) -> None:
    lines = [
        json.loads(line)
        for line in (FILES / "good/race.jsonl").read_text("utf-8").strip().split("\n")
    ]
    lines[0]["sampling"]["temperature"] = 0
    give(page, "\n".join(map(json.dumps, lines)))
    assert "The two texts are the same, token by token." in verdict(page)
    rounds = [line for line in lines if line["event"] == "round" and line["lane"] == "plain"]
    rounds[2]["tokens"], rounds[2]["pieces"] = [99], [" ninety-nine"]
    for line in lines:
        line.pop("text", None)
    give(page, "\n".join(map(json.dumps, lines)))
    assert "first differ at token 3: “ ninety-nine” plainly" in verdict(page)
    assert "Both are greedy, so look closer" in verdict(page)


def test_the_marks_do_not_rest_on_colour(page: Any) -> None:
    style = lambda selector, name: (  # noqa: E731
        race(page).locator(f".key {selector}").evaluate(f"(e) => getComputedStyle(e).{name}")
    )
    assert "underline" in style("ins.kept", "textDecorationLine")
    assert "line-through" in style(".refused del", "textDecorationLine")
    assert race(page).locator(".key .refused small").inner_text() == "refused"
    assert style(".correction", "borderStyle") == "solid"
    assert race(page).locator(".key .bonus sup").inner_text() == "+"


def rounds(page: Any) -> Any:
    return page.locator("lesson-rounds")


def test_the_tree_and_its_list_agree(page: Any) -> None:
    recorded = parse_trace(DATA.joinpath("tree.jsonl").read_text(encoding="utf-8"))
    slider = rounds(page).locator(".scrub input")
    seen = 0
    for number, event in enumerate(recorded.lanes["speculative"].rounds):
        slider.fill(str(number + 1))
        draft = event.draft
        assert draft is not None
        drawn, listed = rounds(page).evaluate(
            """(widget) => ["path.branch.kept", "li[data-fate=kept]"].map((selector) =>
                [...widget.querySelectorAll(selector)].map((part) => Number(part.dataset.node)))"""
        )
        assert sorted(drawn) == sorted(listed) == sorted(draft.path)
        assert rounds(page).locator("li[data-node]").count() == len(draft.tokens)
        nested = (
            rounds(page)
            .locator("li[data-node]")
            .evaluate_all(
                """(items) => items.map((item) => [Number(item.dataset.node),
                Number(item.parentElement.closest("li")?.dataset.node ?? -1)])"""
            )
        )
        assert dict(nested) == dict(enumerate(draft.parents))
        seen += len(draft.path)
    assert seen > 0


def test_a_chain_token_by_token(page: Any) -> None:
    page.locator("#rounds-trace").select_option("code")
    recorded = parse_trace(DATA.joinpath("code.jsonl").read_text(encoding="utf-8"))
    event = recorded.lanes["speculative"].rounds[0]
    rounds(page).locator(".scrub input").fill("1")
    rows = rounds(page).locator("table tbody tr").count()
    assert rows == event.num_draft_tokens
    fates = rounds(page).locator("table tbody td:last-child").all_inner_texts()
    assert fates.count("✓ kept") == event.num_accepted_tokens
    rounds(page).get_by_role("button", name="Next").click()
    said = rounds(page).locator("[data-verdict]").inner_text()
    assert said.startswith(f"Round 2 of {len(recorded.lanes['speculative'].rounds)}: ")


def test_a_trace_with_counts_only_shows_counts(page: Any) -> None:
    give(page, (FILES / "good/counts-only.jsonl").read_text())
    page.locator("#rounds-trace").select_option(label="the run shown in the race")
    assert "This trace has counts only" in rounds(page).inner_text()
