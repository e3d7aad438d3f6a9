"""What a benchmark says in sentences, and how its tables look, on runs whose speeds are known."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from paceline.workbench.bench.report import terminal_sections
from paceline.workbench.bench.results import BenchResult
from paceline.workbench.bench.runs import RoundFacts, Run
from paceline.workbench.bench.verdicts import verdicts
from paceline.workbench.report.console import show
from paceline.workbench.workload import Item
from paceline.workbench.workload.methods import Method

NAMES = ("none", "ngram,k=4", "model,draft=qwen2.5-coder-0.5b,storage=int4,head_tokens=48000,k=5")
TOKENS = 12


def bench(
    speeds: tuple[float, ...],
    rounds: tuple[int, ...],
    items: int = 4,
    wobble: float = 0.01,
    categories: tuple[str, ...] = ("all",),
) -> BenchResult:
    """Every method at its speed on each prompt, a little off by turns.

    Args:
        speeds: of each method, in times of plain decoding.
        rounds: in which each makes its 12 tokens.
        items: the number of prompts.
        wobble: how far a run is off, up or down.
        categories: of the prompts, in turn.
    """
    runs = []
    for item in range(items):
        for turn, method in enumerate((*range(len(speeds)), 0)):
            off = 1 + wobble * (-1) ** (item + turn * (1 + item // 2))
            drafted = int(method > 0)
            facts = RoundFacts(1 + drafted, *3 * (drafted,), 1 + drafted, 0.1, 0.1, 0.1)
            runs.append(
                Run(
                    item, method, tuple(range(TOKENS)), "length", 3, (facts,) * rounds[method],
                    0.5, off / speeds[method],
                )
            )  # fmt: skip
    return BenchResult(
        items=[Item(f"p{n}", "text", categories[n % len(categories)]) for n in range(items)],
        methods=[Method((name.split(",")[0],), name=name) for name in NAMES[: len(speeds)]],
        runs=runs,
        differences={n: [] for n in range(len(speeds))},
        about={"model": "T"},
    )


def said(result: BenchResult) -> dict[str, str]:
    """The sentence after each word; the first one where a word comes twice."""
    return {verdict.word: verdict.text for verdict in reversed(verdicts(result))}


def test_the_fastest_is_named_with_its_interval() -> None:
    found = said(bench((1.0, 1.3, 2.0), (12, 8, 5)))
    assert found["faster"].startswith(f"The fastest was `{NAMES[2]}` (2.0")


def test_two_that_cannot_be_told_apart_are_both_named() -> None:
    result = bench((1.0, 1.5, 1.51), (12, 6, 6))
    assert "too close to distinguish" in said(result)["faster"]
    assert set(result.to_json()["fastest"]) == set(NAMES[1:])


def test_a_figure_that_tokens_a_round_do_not_allow_asks_to_measure_again() -> None:
    """2.35 beside 12 tokens in 10 rounds, as a busy machine gave it."""
    result = bench((1.0, 2.35), (12, 10))
    found = said(result)
    assert found["measure again"].startswith(
        "`ngram,k=4` was 2.35 times as fast as plain decoding, but its tokens per round allow at "
        "most 1.20."
    )
    assert "faster" not in found
    assert result.to_json()["fastest"] == []


def test_what_noise_could_have_made_is_undecided() -> None:
    found = said(bench((1.0, 1.1, 1.12), (12, 6, 6), wobble=0.2))
    assert "noise alone could explain it" in found["undecided"]
    assert "The machine was busy" in found["noise"]


def test_slower_than_plain_is_said() -> None:
    assert "No method was faster" in said(bench((1.0, 0.5, 0.6), (12, 8, 8)))["slower"]


def test_two_prompts_are_too_few() -> None:
    assert "say little about others" in said(bench((1.0, 2.0), (12, 4), items=2))["undecided"]


@pytest.mark.parametrize("width", [80, 120])
def test_tables_are_whole_at_any_width(width: int) -> None:
    """Six categories and a long name: every figure and every part of each name is there."""
    categories = ("writing", "summarization", "mathematical reasoning", "rag", "qa", "translation")
    result = bench((1.0, 1.3, 2.0), (12, 8, 5), items=18, categories=categories)
    console = Console(width=width, file=io.StringIO(), record=True)
    for section in terminal_sections(result):
        show(console, section)
    shown = console.export_text()
    lines = shown.splitlines()
    tables = [line for line in lines if not line.startswith(("faster", "good", "no", "same"))]
    assert max(map(len, tables)) <= width
    assert "…" not in shown
    for place in (1, 2):
        ratio = result.group(place).ratio
        assert ratio is not None
        assert f"{ratio.low:.2f}-{ratio.high:.2f}" in shown
        for name in categories:
            ratio = result.group(place, name).ratio
            assert ratio is not None
            assert f"{ratio.value:.2f} ({ratio.low:.2f}-{ratio.high:.2f})" in shown
    for part in ("draft=qwen2.5-coder-0.5b,", "storage=int4,", "head_tokens=48000,", "k=5"):
        assert part in shown
    for word in (*" ".join(categories).split(), "acceptance", "tokens/s", "predicted"):
        assert word in shown
