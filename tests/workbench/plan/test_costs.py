"""Times between measured shapes, held to costs that are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from paceline.errors import InvalidInput
from paceline.workbench.plan.costs import Costs, MethodCosts, PassCosts, PassTime, interpolate


def exact(rows: float, batch: int, context: int) -> float:
    """A machine that is known: reading, then arithmetic, a cache to read, a price a sequence."""
    total = rows * batch
    return max(0.050, 0.002 * total + 0.040) + batch * context * 1e-6 + (batch - 1) * 0.0005


POINTS = tuple(
    PassTime(rows, batch, context, exact(rows, batch, context))
    for rows, batch, context in [
        *((n, 1, 200) for n in (1, 2, 4, 5, 6, 8, 16, 64, 320)),
        *((n, 1, 2000) for n in (1, 5)),
        *((n, b, 200) for n in (1, 5) for b in (2, 4, 8)),
    ]
)


@pytest.mark.parametrize("rows", [1, 3, 5, 8, 100])
@pytest.mark.parametrize("batch", [1, 3, 8, 64])
@pytest.mark.parametrize("context", [200, 1000, 4000])
def test_any_shape_of_a_known_machine(rows: int, batch: int, context: int) -> None:
    found = PassCosts(POINTS).seconds(rows, batch, context)
    assert found == pytest.approx(exact(rows, batch, context), rel=1e-9)


def test_noise_does_not_make_more_rows_cheaper() -> None:
    noisy = [PassTime(n, 1, 200, t) for n, t in [(1, 0.05), (2, 0.06), (3, 0.05), (4, 0.07)]]
    times = [PassCosts(tuple(noisy)).seconds(n) for n in (1, 1.5, 2, 2.5, 3, 4)]
    assert times == sorted(times)
    assert times[2] == times[4] == pytest.approx(0.055)


def test_the_ridge_is_where_arithmetic_starts_to_cost() -> None:
    # .002 a row beyond 5 rows: 10 % of .0502 more at 7.5 rows.
    assert PassCosts(POINTS).free_rows(0.1) == 7


def test_a_curve_ends_flat_or_goes_on() -> None:
    curve = [(2, 1.0), (4, 2.0)]
    assert [interpolate(curve, at) for at in (1, 2, 3, 6)] == [1.0, 1.0, 1.5, 3.0]
    assert interpolate(curve, 6, extend=False) == 2.0
    assert interpolate([(1, 5.0)], 9) == 5.0


def test_costs_survive_a_file(tmp_path: Path) -> None:
    costs = Costs("toy", PassCosts(POINTS), {"ngram": MethodCosts(1e-5, 1e-6, 2e-4)})
    file = tmp_path / "costs.json"
    file.write_text(json.dumps(costs.to_json()))
    assert Costs.read(file) == costs


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "cannot read"),
        ("[]", "holds no measured costs"),
        ('{"model": "t"}', "holds no measured costs"),
        ('{"model": "t", "passes": [], "methods": {}}', "at least the time of a pass"),
        (
            '{"model": "t", "passes": [{"rows": 0, "batch": 1, "context": 1, "seconds": 1}], '
            '"methods": {}}',
            "at least 1 row",
        ),
    ],
)
def test_files_that_hold_no_costs(tmp_path: Path, content: str, message: str) -> None:
    file = tmp_path / "costs.json"
    file.write_text(content)
    with pytest.raises(InvalidInput, match=message):
        Costs.read(file)


def test_a_missing_file(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="cannot read"):
        Costs.read(tmp_path / "none.json")


def test_nothing_is_paid_for_a_round_without_a_draft() -> None:
    costs = MethodCosts(0.01, 0.002)
    assert [costs.draft(k) for k in (0, 1, 5)] == pytest.approx([0, 0.012, 0.02])
