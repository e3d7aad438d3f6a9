from __future__ import annotations

from pathlib import Path

import pytest

from paceline.economics.cost import speedup
from paceline.errors import InvalidInput
from paceline.workbench.plan.plots import LENGTHS, check_plot_path, figure_of, save_plot


@pytest.mark.parametrize(("name", "start"), [("p.png", b"\x89PNG"), ("p.svg", b"<?xml")])
def test_files_are_what_their_names_say(tmp_path: Path, name: str, start: bytes) -> None:
    save_plot(tmp_path / name, 0.8, 0.05)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_the_lines_are_the_formula() -> None:
    left, middle, _ = figure_of(0.75, 0.07).axes
    for axes, label in ((left, "alpha 0.75"), (middle, "c 0.07")):
        (line,) = [line for line in axes.get_lines() if line.get_label() == label]
        assert list(line.get_ydata()) == [speedup(0.75, 0.07, k) for k in LENGTHS]


@pytest.mark.parametrize("name", ["p.jpg", "p", "none/p.png"])
def test_other_paths_are_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidInput, match="--plot"):
        check_plot_path(tmp_path / name)
