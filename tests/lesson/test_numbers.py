"""The page's arithmetic against the package's own, and every number that the page has to show."""

from __future__ import annotations

import itertools
import math
from typing import Any

import pytest
import torch

from paceline.economics import cost, roofline
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.lenience import LenienceVerifier
from paceline.verifiers.naive import NaiveVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.top_beta import TopBetaVerifier
from paceline.verifiers.typical import TypicalVerifier
from tests.rounds import A, B, Rule, always, chain, emitted_law, first_token, law

pytestmark = pytest.mark.browser

WORKED = law(0.4, 0.4, 0.2), law(0.6, 0.3, 0.1)
TOLERANCE = 1e-9

RULES: dict[str, Rule] = {
    "token": TokenVerifier().verify,
    "block": BlockVerifier().verify,
    "naive": NaiveVerifier().verify,
    "typical": TypicalVerifier().verify,
    "lenience .5": LenienceVerifier(0.5).verify,
    "lenience .8": LenienceVerifier(0.8).verify,
    "top-beta": TopBetaVerifier().verify,
}


def called(page: Any, module: str, body: str, *values: Any) -> Any:
    """`body` calculated in the page with a module's functions as `m` and the values as `v`."""
    return page.evaluate(
        f"async (v) => {{ const m = await import('lesson/{module}.js'); return {body}; }}",
        list(values),
    )


def pairs(count: int) -> list[tuple[list[float], list[float]]]:
    """Pairs of distributions over 3 to 5 tokens, some with tokens that q never draws."""
    source = torch.Generator().manual_seed(5)
    found = []
    for number in range(count):
        size = 3 + number % 3
        p, q = (torch.rand(size, generator=source, dtype=torch.float64) ** 2 for _ in range(2))
        if number % 4 == 0:
            q[number % size] = 0
        if number % 7 == 0:
            p[(number + 1) % size] = 0
        found.append(((p / p.sum()).tolist(), (q / q.sum()).tolist()))
    return found


PAIRS = [tuple(law.tolist() for law in pair) for pair in (WORKED, A, B)] + pairs(57)


def test_what_a_round_yields_and_costs(still: Any) -> None:
    grid = list(
        itertools.product(
            (0, 0.05, 0.3, 0.5, 0.7, 0.8, 0.99, 1), (0, 0.05, 0.13, 0.6), range(17), (1, 1.5)
        )
    )
    found = called(
        still,
        "math",
        """v[0].map(([a, c, k, t]) => [m.expectedTokens(a, k), m.roundCost(c, k, t),
            m.speedup(a, c, k, t), m.bestLength(a, c, 16, t), k ? m.breakEvenRate(c, k, t) : null,
            k ? m.breakEvenCost(a, k, t) : null])""",
        grid,
    )
    for (a, c, k, t), (tokens, time, speed, best, rate, step) in zip(grid, found, strict=True):
        assert tokens == pytest.approx(cost.expected_tokens(a, k), abs=TOLERANCE)
        assert time == pytest.approx(cost.round_cost(c, k, t), abs=TOLERANCE)
        assert speed == pytest.approx(cost.speedup(a, c, k, t), abs=TOLERANCE)
        expected = cost.best_num_draft_tokens(a, c, t, max_num_draft_tokens=16)
        assert cost.speedup(a, c, best, t) == pytest.approx(cost.speedup(a, c, expected, t))
        if k:
            assert rate == pytest.approx(cost.break_even_acceptance_rate(c, k, t), abs=TOLERANCE)
            assert step == pytest.approx(cost.break_even_cost(a, k, t), abs=TOLERANCE)


def test_rules_on_sixty_pairs(still: Any) -> None:
    found = called(
        still,
        "laws",
        "v[0].map(([p, q]) => Object.fromEntries(v[1].map((rule) => [rule, m.apply(rule, p, q)])))",
        PAIRS,
        list(RULES),
    )
    for (p, q), results in zip(PAIRS, found, strict=True):
        target, draft = law(*p), law(*q)
        for name, rule in RULES.items():
            emitted = emitted_law(rule, always(target), chain(always(draft), 1))
            shown = results[name]
            assert shown["output"] == pytest.approx(first_token(emitted, len(p)), abs=TOLERANCE)
            kept = sum(chance for tokens, chance in emitted.items() if len(tokens) == 2)
            assert shown["kept"] == pytest.approx(kept, abs=TOLERANCE)


def test_the_exact_rules_are_exact_on_two_hundred_pairs(still: Any) -> None:
    many = pairs(200)
    body = "v[0].map(([p, q]) => ['token', 'block', 'naive'].map((r) => m.apply(r, p, q).distance))"
    assert max(itertools.chain(*called(still, "laws", body, many))) < TOLERANCE


def accepted(rule: Rule, p: torch.Tensor, q: torch.Tensor, length: int) -> float:
    emitted = emitted_law(rule, always(p), chain(always(q), length))
    return sum(chance * (len(tokens) - 1) for tokens, chance in emitted.items())


@pytest.mark.parametrize("length", [1, 2, 3])
def test_longer_drafts(still: Any, length: int) -> None:
    body = "v[0].map(([p, q]) => [m.chainKept(p, q, v[1]), m.blockKept(p, q, v[1])])"
    some = PAIRS[:6]
    for (p, q), found in zip(some, called(still, "laws", body, some, length), strict=True):
        target, draft = law(*p), law(*q)
        expected = [
            accepted(rule, target, draft, length) for rule in (RULES["token"], RULES["block"])
        ]
        assert found == pytest.approx(expected, abs=TOLERANCE)


def test_longer_drafts_on_the_worked_pair(still: Any) -> None:
    p, q = PAIRS[0]
    body = "[1, 2, 3, 4].map((k) => [m.chainKept(v[0], v[1], k), m.blockKept(v[0], v[1], k)])"
    rows = called(still, "laws", body, p, q)
    expected = [(0.8, 0.8), (1.44, 1.5), (1.952, 2.124), (2.3616, 2.6884)]
    assert rows == [pytest.approx(row, abs=TOLERANCE) for row in expected]


def test_children(still: Any) -> None:
    ways = ["with replacement", "without replacement", "most probable, chosen"]
    body = "v[0].map((way) => [1, 2, 3].map((k) => m.CHILDREN[way](v[1], v[2], k)))"
    p, q = PAIRS[0]
    expected = [[0.8, 0.88, 0.928], [0.8, 0.95, 1], [0.4, 0.8, 1]]
    assert called(still, "laws", body, ways, p, q) == [pytest.approx(row) for row in expected]
    # Pair A, from the table in docs/exactness.md, which is held against the rules themselves.
    p, q = PAIRS[1]
    expected = [[0.7, 0.82, 0.848], [0.7, 0.875, 1], [0.3, 0.7, 1]]
    assert called(still, "laws", body, ways, p, q) == [pytest.approx(row) for row in expected]
    p, q = PAIRS[2]
    expected = [[0.55, 0.645, 0.6805], [0.55, 0.6708, 0.7714], [0.125, 0.25, 0.5]]
    found = called(still, "laws", body, ways, p, q)
    assert found == [pytest.approx(row, abs=5e-5) for row in expected]


MISTAKES = [("redraw", (0.48, 0.38, 0.14), 0.08, 0.11), ("favourite", (0.6, 0.3, 0.1), 0.2, 0.2)]


@pytest.mark.parametrize(("name", "output", "distance", "on_a"), MISTAKES)
def test_mistakes(still: Any, name: str, output: Any, distance: float, on_a: float) -> None:
    body = "v.slice(1).map(([p, q]) => m.apply(v[0], p, q))"
    worked, pair_a = called(still, "laws", body, name, *PAIRS[:2])
    assert worked["output"] == pytest.approx(output)
    assert worked["distance"] == pytest.approx(distance)
    assert worked["kept"] == pytest.approx(0.8)
    assert pair_a["distance"] == pytest.approx(on_a)


def test_draws_from_a_seed(still: Any) -> None:
    body = "v[0].map((rule) => m.draw(rule, v[1], v[2], 200000, 1))"
    exact, redrawn = called(still, "laws", body, ["token", "redraw"], *PAIRS[0])
    assert exact == {"counts": [80_087, 79_806, 40_107], "kept": 159_739}
    assert redrawn == {"counts": [96_137, 75_965, 27_898], "kept": 159_739}
    # n = 200,000: each share within 4 standard deviations, a false alarm in 1 of 5,000 seeds.
    for count, mass in zip(exact["counts"], PAIRS[0][0], strict=True):
        deviation = math.sqrt(mass * (1 - mass) / 200_000)
        assert abs(count / 200_000 - mass) < 4 * deviation


def test_a_mass_that_moves_leaves_the_others_in_proportion(still: Any) -> None:
    body = "[m.moved([.4, .4, .2], 0, .1), m.moved([1, 0, 0], 0, .4), m.moved([.5, .5, 0], 2, 1)]"
    found = called(still, "laws", body)
    assert found == [pytest.approx(row) for row in ([0.1, 0.6, 0.3], [0.4, 0.3, 0.3], [0, 0, 1])]


def test_passes_by_the_roofline(still: Any) -> None:
    machine = roofline.Machine(bytes_per_second=3.35e12, operations_per_second=989e12)
    model = roofline.ModelSize(num_parameters=8e9, weight_bytes=16e9, kv_bytes_per_token=131_072)
    grid = list(itertools.product((1, 59, 64, 118, 128, 256), (0, 2048, 32_768), range(1, 18)))
    found = page_ratios(still, grid)
    for (batch, context, rows), ratio in zip(grid, found, strict=True):
        expected = roofline.verify_cost(machine, model, batch, context)(rows)
        assert ratio == pytest.approx(expected, abs=TOLERANCE)
    body = "(await import('lesson/math.js')).ridgeRows(m.H100, m.MODEL_8B)"
    assert called(still, "planner", body) == pytest.approx(roofline.ridge_rows(machine))


def page_ratios(page: Any, grid: Any) -> Any:
    return page.evaluate(
        """async (grid) => {
          const { rooflineVerify } = await import('lesson/math.js');
          const { H100, MODEL_8B } = await import('lesson/planner.js');
          return grid.map(([b, context, n]) => rooflineVerify(H100, MODEL_8B, b, context)(n));
        }""",
        grid,
    )


TABLE = [
    ((0.5, 4), 1.9375),
    ((0.8, 4), 3.3616),
    ((0.9, 4), 4.0951),
]
SPEEDS = [
    ((0.3, 0.05, 4), 1.1876),
    ((0.8, 0.05, 4), 2.8013),
    ((0.9, 0.05, 4), 3.4126),
    ((0.8, 0.3, 4), 1.5280),
    ((0.8, 0.6, 4), 0.9887),
    ((0.8, 0.05, 7), 3.0823),
    ((0.8, 0.05, 8), 3.0921),
    ((0.8, 0.05, 9), 3.0780),
    ((0.8, 0.3, 2), 1.5250),
    ((0.8, 0.3, 3), 1.5537),
    ((0.8, 0.6, 1), 1.1250),
    ((0.8, 0.0, 4), 3.3616),
]


def test_the_numbers_to_know(still: Any) -> None:
    tokens = called(
        still, "math", "v[0].map(([a, k]) => m.expectedTokens(a, k))", [row[0] for row in TABLE]
    )
    assert tokens == pytest.approx([row[1] for row in TABLE], abs=5e-5)
    speeds = called(
        still, "math", "v[0].map(([a, c, k]) => m.speedup(a, c, k))", [row[0] for row in SPEEDS]
    )
    assert speeds == pytest.approx([row[1] for row in SPEEDS], abs=5e-5)
    best = called(still, "math", "[.05, .3, .6].map((c) => m.bestLength(.8, c, 16))")
    assert best == [8, 3, 1]
    assert called(still, "math", "m.breakEvenRate(.05, 4)") == pytest.approx(0.1668, abs=5e-5)
    assert called(still, "math", "m.breakEvenCost(.8, 4)") == pytest.approx(0.5904, abs=5e-5)
    # They stand on the page in the same digits.
    text = still.locator("#gain").inner_text()
    for _, value in TABLE + SPEEDS:
        assert f"{value:.4f}".removeprefix("0") in text
