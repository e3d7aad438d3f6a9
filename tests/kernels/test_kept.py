"""Ratios that are kept: only where they leave no doubt, and for this machine alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.kernels import kept
from paceline.kernels.kept import kept_ratio


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
    return tmp_path


def never() -> float:
    raise AssertionError("measured again")


@pytest.mark.parametrize("ratio", [0.4, 2.0])
def test_a_ratio_that_leaves_no_doubt_is_measured_once(ratio: float) -> None:
    assert kept_ratio("a", 0.9, lambda: ratio) == ratio
    assert kept_ratio("b", 0.9, lambda: ratio / 4) == ratio / 4
    assert (kept_ratio("a", 0.9, never), kept_ratio("b", 0.9, never)) == (ratio, ratio / 4)


@pytest.mark.parametrize("ratio", [0.8, 0.9, 1.0])
def test_a_ratio_near_its_limit_is_measured_each_time(ratio: float) -> None:
    measured: list[float] = []
    for _ in range(3):
        kept_ratio("a", 0.9, lambda: measured.append(ratio) or ratio)  # type: ignore[func-returns-value]
    assert len(measured) == 3


def test_another_machine_measures_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    kept_ratio("a", 0.9, lambda: 0.2)
    monkeypatch.setattr(kept, "_machine", lambda: "another")
    assert kept_ratio("a", 0.9, lambda: 3.0) == 3.0


@pytest.mark.parametrize("text", ["", "{", "[]", '{"a": "x"}', '{"a": -1}'])
def test_a_damaged_file_is_measured_over(cache: Path, text: str) -> None:
    kept_ratio("b", 0.9, lambda: 0.2)
    (file,) = (cache / "measured").iterdir()
    file.write_text(text)
    assert kept_ratio("a", 0.9, lambda: 0.3) == 0.3
    assert kept_ratio("a", 0.9, never) == 0.3


def test_a_cache_that_cannot_be_written_costs_nothing_but_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (cache / "file").write_text("")
    monkeypatch.setenv("PACELINE_CACHE", str(cache / "file"))
    assert kept_ratio("a", 0.9, lambda: 0.2) == 0.2
    assert kept_ratio("a", 0.9, lambda: 0.3) == 0.3
