"""The planner and the workloads: their values, files of one's own, and files of another kind."""

from __future__ import annotations

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.browser

RESULTS = Path(__file__).parent.parent.parent / "benchmarks/results"
REPLAY = json.loads(files("paceline.lesson").joinpath("page/data/replay.json").read_text())

ROOFLINE = [
    (0, 1, "2.801"),
    (0, 59, "2.801"),
    (0, 64, "2.618"),
    (0, 118, "1.529"),
    (0, 128, "1.420"),
    (0, 256, "0.741"),
    (2048, 256, "2.801"),
]
MEASURED = [
    (1, "1.000", "2.801"),
    (2, "1.388", "2.117"),
    (4, "1.807", "1.675"),
    (8, "2.960", "1.064"),
]


def value(page: Any, name: str) -> str:
    text: str = page.locator(f'lesson-planner [data-value="{name}"]').inner_text()
    return text.removesuffix("×").strip()


def give(page: Any, field: str, text: str) -> None:
    file = {"name": "own.json", "mimeType": "application/json", "buffer": text.encode()}
    page.locator(f"#{field}").set_input_files(file)
    page.locator(f"lesson-{field.removesuffix('-file')} [data-message]").wait_for()


def test_the_planner_by_the_roofline(page: Any) -> None:
    assert value(page, "Rows that are free") == "295"
    for context, batch, speed in ROOFLINE:
        page.locator("#planner-context + .typed input").fill(str(context))
        page.locator("#planner-batch + .typed input").fill(str(batch))
        assert value(page, "Speed-up") == speed, (context, batch)
    page.locator("#planner-context + .typed input").fill("0")
    assert value(page, "Best K") == "1: 1.01"
    assert "slower" in page.locator("lesson-planner [data-verdict]").inner_text()
    page.locator("#planner-k + .typed input").fill("1")
    assert value(page, "Speed-up") == "1.009"


def test_the_planner_with_measured_passes(page: Any) -> None:
    page.locator("lesson-planner .segments").get_by_text("Measured passes").click()
    for batch, ratio, speed in MEASURED:
        page.locator("#planner-batch + .typed input").fill(str(batch))
        assert value(page, "T(5) / T(1)") == ratio
        assert value(page, "Speed-up") == speed
    assert "held fixed" in page.locator("lesson-planner").inner_text()


def test_the_planner_with_passes_of_ones_own(page: Any) -> None:
    passes = [
        {"rows": rows, "batch": 3, "context": 100, "seconds": seconds}
        for rows, seconds in ((1, 0.1), (3, 0.2), (5, 0.4))
    ]
    give(page, "planner-file", json.dumps({"passes": passes}))
    assert value(page, "T(5) / T(1)") == "4.000"
    page.locator("#planner-k + .typed input").fill("3")
    assert value(page, "T(4) / T(1)") == "3.000"  # halfway between three rows and five
    page.locator("#planner-k + .typed input").fill("16")
    assert value(page, "T(5) / T(1)") == "4.000"  # longer drafts were not measured


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", "{}", '{"passes":[]}', '{"passes":[{"rows":1,"batch":1}]}', "[1]"],
)
def test_what_is_no_file_of_passes_is_refused(page: Any, text: str) -> None:
    before = value(page, "Speed-up")
    give(page, "planner-file", text)
    message = page.locator("lesson-planner [data-message]").inner_text()
    assert message.startswith("own.json cannot be used: ")
    assert value(page, "Speed-up") == before


WORKLOADS = {
    "model,k=5": {
        "Code": ("0.857", "4.00", "2.11"),
        "Mathematics": ("0.841", "3.88", "2.03"),
        "Summaries": ("0.789", "3.37", "1.78"),
        "Translation": ("0.612", "2.36", "1.25"),
        "Questions": ("0.575", "2.10", "1.15"),
        "Prose": ("0.573", "2.25", "1.18"),
    },
    "ngram,k=5": {
        "Summaries": ("0.722", "2.56", "2.33"),
        "Code": ("0.444", "1.28", "1.24"),
        "Prose": ("0.096", "1.04", "1.01"),
    },
}


def table(page: Any) -> dict[str, tuple[str, ...]]:
    rows = page.locator("lesson-workloads tbody tr").evaluate_all(
        "(rows) => rows.map((row) => [...row.children].map((cell) => cell.textContent.trim()))"
    )
    return {row[0]: tuple(cell.split()[0] for cell in row[1:4]) for row in rows}


def test_the_workloads(page: Any) -> None:
    for method, expected in WORKLOADS.items():
        page.locator("#workloads-method").select_option(label=method)
        shown = table(page)
        assert {name: shown[name] for name in expected} == expected
    assert "Code: 61 of 100 rounds had no draft." in page.locator("lesson-workloads").inner_text()
    assert "predicted" in page.locator("lesson-workloads thead").inner_text()


def test_a_benchmark_of_ones_own(page: Any) -> None:
    text = (RESULTS / "bench_ngram.json").read_text()
    give(page, "workloads-file", text)
    report = json.loads(text)
    drafted = [method for method in report["methods"] if method["name"] != "none"]
    labels = page.locator("#workloads-method option").all_text_contents()
    assert [label.strip() for label in labels] == [method["name"] for method in drafted]
    cells = page.locator("lesson-workloads tbody tr").first.locator("td").all_text_contents()
    best = max(drafted[0]["categories"].values(), key=lambda part: part["acceptance_rate"] or 0)
    speed = best["speedup"]
    assert cells[2].split() == [f"{speed['value']:.2f}", f"{speed['low']:.2f}–{speed['high']:.2f}"]
    page.locator("lesson-workloads").get_by_role("button", name="Reset").click()
    assert table(page)["Code"] == WORKLOADS["model,k=5"]["Code"]


def broken(change: Any) -> str:
    report = json.loads(json.dumps(REPLAY))
    change(report)
    return json.dumps(report)


BAD = {
    "empty": "",
    "no object": "3",
    "null": "null",
    "another schema": broken(lambda report: report.update(schema="paceline.plan/1")),
    "no schema": broken(lambda report: report.pop("schema")),
    "no methods": broken(lambda report: report.pop("methods")),
    "methods that are none": broken(lambda report: report.update(methods=[1, None, {}])),
    "a rate in words": broken(
        lambda report: report["methods"][0]["categories"]["qa"].update(acceptance_rate="much")
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_report_is_refused(page: Any, name: str) -> None:
    before = table(page)
    give(page, "workloads-file", BAD[name])
    message = page.locator("lesson-workloads [data-message]").inner_text()
    assert message.startswith("own.json cannot be shown: ")
    assert table(page) == before
