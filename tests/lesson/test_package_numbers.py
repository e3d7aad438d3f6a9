"""Every number that the lesson tells, computed by the package, without a browser.

tests/lesson/test_numbers.py holds the page's own arithmetic against the package; here the numbers
that stand in its texts, tables and presets are held to the package itself.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Draft, Scheme, Verdict
from paceline.core.protocols import Noise, Purpose
from paceline.economics import cost, roofline
from paceline.economics.curve import interpolated
from paceline.testing.law import output_law
from paceline.verifiers.block import BlockVerifier
from paceline.verifiers.lenience import LenienceVerifier
from paceline.verifiers.naive import NaiveVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.top_beta import TopBetaVerifier
from paceline.verifiers.tree import TreeVerifier
from paceline.verifiers.typical import TypicalVerifier
from tests.rounds import A, Rule, always, chain, emitted_law, first_token, law
from tests.trees import tree

DATA = files("paceline.lesson").joinpath("page/data")
RESULTS = Path(__file__).parent.parent.parent / "benchmarks" / "results"
P, Q = law(0.4, 0.4, 0.2), law(0.6, 0.3, 0.1)
"""The worked pair: of the target and of the draft."""


def carried(name: str) -> Any:
    """What the page carries of a measurement."""
    return json.loads(DATA.joinpath(name).read_text(encoding="utf-8"))


def two(value: float) -> float:
    """As a reader sees it with two places."""
    return round(value, 2)


class TestGain:
    """The explorer: K drafted tokens, acceptance alpha, a draft step that costs c passes."""

    # (K, alpha, c): kept, tokens, passes, speed-up; two places, as the page shows them.
    ROWS = (
        ((4, 0.7, 0.13), (1.77, 2.77, 1.52, 1.82)),
        ((4, 0.5, 0.13), (0.94, 1.94, 1.52, 1.27)),
        ((8, 0.5, 0.13), (1.00, 2.00, 2.04, 0.98)),
        ((16, 0.5, 0.13), (1.00, 2.00, 3.08, 0.65)),
        ((4, 0.3, 0.13), (0.43, 1.43, 1.52, 0.94)),
        ((4, 0.0, 0.13), (0.00, 1.00, 1.52, 0.66)),
        ((4, 1.0, 0.13), (4.00, 5.00, 1.52, 3.29)),
        ((0, 0.7, 0.13), (0.00, 1.00, 1.00, 1.00)),
    )

    @pytest.mark.parametrize(("given", "shown"), ROWS, ids=str)
    def test_a_row_of_the_explorer(self, given: Any, shown: Any) -> None:
        k, alpha, c = given
        found = (
            cost.expected_accepted_tokens(alpha, k),
            cost.expected_tokens(alpha, k),
            cost.round_cost(c, k),
            cost.speedup(alpha, c, k),
        )
        assert tuple(map(two, found)) == shown

    def test_its_notes(self) -> None:
        assert cost.best_num_draft_tokens(0.7, 0.13, max_num_draft_tokens=16) == 4
        assert cost.best_num_draft_tokens(0.5, 0.13, max_num_draft_tokens=16) == 2
        assert two(cost.speedup(0.5, 0.13, 2)) == 1.39
        assert cost.oracle_tokens(0.5) - 1 == 1.0, "the longest prefix that can be kept"
        rate = cost.break_even_acceptance_rate(0.13, 4)
        assert rate is not None
        assert round(100 * rate, 1) == 34.5
        # What is drafted and kept falls with K, while alpha stays.
        shares = [cost.expected_accepted_tokens(0.7, k) / k for k in (4, 8)]
        assert [round(100 * share) for share in shares] == [44, 27]
        assert two(4 - cost.expected_accepted_tokens(0.7, 4)) == 2.23
        assert round(1.8 / 14.1, 3) == 0.128

    def test_the_table(self) -> None:
        tokens = [cost.expected_tokens(alpha, 4) for alpha in (0.5, 0.8, 0.9)]
        assert [round(value, 4) for value in tokens] == [1.9375, 3.3616, 4.0951]
        pairs = ((0.3, 0.05), (0.8, 0.05), (0.9, 0.05), (0.8, 0.3), (0.8, 0.6))
        speeds = [round(cost.speedup(alpha, c, 4), 4) for alpha, c in pairs]
        assert speeds == [1.1876, 2.8013, 3.4126, 1.528, 0.9887]

    @pytest.mark.parametrize(
        ("c", "best", "speeds"),
        [
            (0.05, 8, {7: 3.0823, 8: 3.0921, 9: 3.0780}),
            (0.3, 3, {2: 1.5250, 3: 1.5537, 4: 1.5280}),
            (0.6, 1, {1: 1.1250}),
        ],
    )
    def test_best_lengths(self, c: float, best: int, speeds: dict[int, float]) -> None:
        assert cost.best_num_draft_tokens(0.8, c, max_num_draft_tokens=16) == best
        assert {k: round(cost.speedup(0.8, c, k), 4) for k in speeds} == speeds

    def test_the_diagrams(self) -> None:
        rate = cost.break_even_acceptance_rate(0.05, 4)
        step = cost.break_even_cost(0.8, 4)
        assert rate is not None
        assert step is not None
        assert (round(rate, 4), round(step, 4)) == (0.1668, 0.5904)
        assert round(cost.speedup(0.8, 0.0, 4), 4) == 3.3616


def redraw(keep: Callable[[int], Tensor]) -> Rule:
    """A mistake: the token test, and after a refusal a draw from `keep` and not the residual."""

    def verify(draft: Draft, p: Any, noise: Noise, position: int) -> Verdict:
        target, token = p(-1), draft.tokens[0]
        q = draft.law(0)
        assert q is not None
        if noise.accept(min(1.0, float(target[token] / q[token])), position):
            return Verdict((0,), noise.sample(p(0), position + 1, Purpose.TARGET))
        return Verdict((), noise.sample(keep(target), position, Purpose.TARGET))

    return verify


def favourite(p: Tensor) -> Tensor:
    return torch.nn.functional.one_hot(p.argmax(), len(p)).to(p)


class TestLaboratory:
    """What a rule does to the first token of a draft of one, by enumeration."""

    # On the worked pair: how many are kept, the output, its distance; on pair A its distance.
    ROWS: tuple[tuple[str, Rule, float, tuple[float, ...], float, float], ...] = (
        ("token", TokenVerifier().verify, 0.8, (0.4, 0.4, 0.2), 0, 0),
        ("block", BlockVerifier().verify, 0.8, (0.4, 0.4, 0.2), 0, 0),
        ("naive", NaiveVerifier().verify, 0.38, (0.4, 0.4, 0.2), 0, 0),
        ("typical", TypicalVerifier().verify, 1, (0.6, 0.3, 0.1), 0.2, 0.3),
        ("lenience .5", LenienceVerifier(0.5).verify, 1, (0.6, 0.3, 0.1), 0.2, 0.3),
        ("lenience .8", LenienceVerifier(0.8).verify, 0.9, (0.5, 0.35, 0.15), 0.1, 0.075),
        ("top-beta", TopBetaVerifier().verify, 1, (0.6, 0.3, 0.1), 0.2, 0.3),
        ("redraw from p", redraw(lambda p: p), 0.8, (0.48, 0.38, 0.14), 0.08, 0.11),
        ("take the favourite", redraw(favourite), 0.8, (0.6, 0.3, 0.1), 0.2, 0.2),
    )

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: row[0])
    def test_a_row(self, row: Any) -> None:
        _, rule, kept, output, distance, distance_on_a = row
        emitted = emitted_law(rule, always(P), chain(always(Q), 1))
        assert first_token(emitted, 3) == pytest.approx(output, abs=1e-9)
        accepted = sum(chance for tokens, chance in emitted.items() if len(tokens) == 2)
        assert accepted == pytest.approx(kept, abs=1e-9)
        assert total_variation(first_token(emitted, 3), P) == pytest.approx(distance, abs=1e-9)
        on_a = first_token(emitted_law(rule, always(A[0]), chain(always(A[1]), 1)), 3)
        assert total_variation(on_a, A[0]) == pytest.approx(distance_on_a, abs=1e-9)

    def test_the_worked_example(self) -> None:
        keep = (P / Q).clamp(max=1)
        assert keep.tolist() == pytest.approx([2 / 3, 1, 1])
        assert float(torch.minimum(P, Q).sum()) == pytest.approx(0.8)
        residual = (P - Q).clamp(min=0)
        assert (residual / residual.sum()).tolist() == pytest.approx([0, 0.5, 0.5])

    @pytest.mark.parametrize(
        ("rule", "expected"),
        [
            (TokenVerifier().verify, (0.8, 1.44, 1.952, 2.3616)),
            (BlockVerifier().verify, (0.8, 1.5, 2.124, 2.6884)),
        ],
        ids=["token", "block"],
    )
    def test_longer_drafts(self, rule: Rule, expected: tuple[float, ...]) -> None:
        for length, kept in enumerate(expected, start=1):
            emitted = emitted_law(rule, always(P), chain(always(Q), length))
            found = sum(chance * (len(tokens) - 1) for tokens, chance in emitted.items())
            assert found == pytest.approx(kept, abs=1e-9)

    @pytest.mark.parametrize(
        ("scheme", "expected"),
        [
            (Scheme.IID, (0.8, 0.88, 0.928)),
            (Scheme.WITHOUT_REPLACEMENT, (0.8, 0.95, 1.0)),
        ],
        ids=str,
    )
    def test_several_children(self, scheme: Scheme, expected: tuple[float, ...]) -> None:
        for count, chance in enumerate(expected, start=1):
            assert accepted_child(tree(always(Q), (-1,) * count, scheme)) == pytest.approx(chance)

    def test_children_that_are_chosen(self) -> None:
        for count, chance in enumerate((0.4, 0.8, 1.0), start=1):
            draft = Draft(tuple(range(count)), (-1,) * count, scheme=Scheme.CHOSEN)
            assert accepted_child(lambda _, draft=draft: draft) == pytest.approx(chance)


def total_variation(found: list[float], p: Tensor) -> float:
    return sum(abs(one - two) for one, two in zip(found, p.tolist(), strict=True)) / 2


def accepted_child(drafting: Callable[[Noise], Draft]) -> float:
    """The probability that the tree rule accepts one of the children."""

    def accepted(noise: Noise) -> int:
        return len(TreeVerifier().verify(drafting(noise), lambda _: P, noise, 0).path)

    return output_law(accepted).get(1, 0.0)


def mulberry32(seed: int) -> Iterator[float]:
    """The page's random numbers: 32-bit arithmetic, as JavaScript's Math.imul does it."""
    mask, state = 0xFFFFFFFF, seed
    while True:
        state = (state + 0x6D2B79F5) & mask
        mixed = ((state ^ (state >> 15)) * (1 | state)) & mask
        mixed = ((mixed + ((mixed ^ (mixed >> 7)) * (61 | mixed))) & mask) ^ mixed
        yield (mixed ^ (mixed >> 14)) / 2**32


def pick(law: list[float], number: float) -> int:
    for place, mass in enumerate(law):
        number -= mass
        if number < 0:
            return place
    return len(law) - 1


@pytest.mark.parametrize(
    ("replacement", "expected"),
    [((0.0, 0.5, 0.5), (80_087, 79_806, 40_107)), ((0.4, 0.4, 0.2), (96_137, 75_965, 27_898))],
    ids=["residual", "redrawn from p"],
)
def test_200_000_draws_at_seed_1(replacement: tuple[float, ...], expected: tuple[int, ...]) -> None:
    """Draft, test, and a replacement if it was refused, from one stream of numbers."""
    p, q, numbers = P.tolist(), Q.tolist(), mulberry32(1)
    counts, kept = [0, 0, 0], 0
    for _ in range(200_000):
        token = pick(q, next(numbers))
        if next(numbers) < min(1.0, p[token] / q[token]):
            kept += 1
        else:
            token = pick(list(replacement), next(numbers))
        counts[token] += 1
    assert (tuple(counts), kept) == (expected, 159_739)


class TestPlanner:
    H100 = roofline.Machine(bytes_per_second=3.35e12, operations_per_second=989e12)
    MODEL = roofline.ModelSize(num_parameters=8e9, weight_bytes=16e9, kv_bytes_per_token=131_072)

    @pytest.mark.parametrize(
        ("batch", "context", "expected"),
        [
            (1, 0, 2.801),
            (59, 0, 2.801),
            (64, 0, 2.618),
            (118, 0, 1.529),
            (128, 0, 1.420),
            (256, 0, 0.741),
            (256, 2048, 2.801),
        ],
    )
    def test_a_preset(self, batch: int, context: int, expected: float) -> None:
        ratio = roofline.verify_cost(self.H100, self.MODEL, batch, context)
        assert round(cost.speedup(0.8, 0.05, 4, ratio), 3) == expected

    def test_its_notes(self) -> None:
        assert round(roofline.ridge_rows(self.H100)) == 295
        ratio = roofline.verify_cost(self.H100, self.MODEL, 256, 0)
        assert cost.best_num_draft_tokens(0.8, 0.05, ratio, max_num_draft_tokens=16) == 1
        assert round(cost.speedup(0.8, 0.05, 1, ratio), 3) == 1.009

    def test_the_measured_machine(self) -> None:
        """Passes as measured; where more rows were faster, that was noise: the ratio is 1."""
        passes = carried("plan_costs.json")["passes"]
        found, raw = [], []
        for batch in (1, 2, 4, 8):
            seconds = {
                item["rows"]: item["seconds"]
                for item in passes
                if item["batch"] == batch and item["context"] == 200
            }
            rows = sorted(seconds)
            at_five = interpolated(rows, [seconds[count] for count in rows], 5)
            raw.append(at_five / seconds[1])
            found.append(max(1.0, at_five / seconds[1]))
        assert two(raw[0]) == 0.92
        assert [round(value, 3) for value in found] == [1, 1.388, 1.807, 2.960]
        speeds = [round(cost.speedup(0.8, 0.05, 4, value), 3) for value in found]
        assert speeds == [2.801, 2.117, 1.675, 1.064]


class TestWorkloads:
    """Acceptance, tokens a round and speed-up by category, of the replay that the page carries."""

    ROWS = (
        ("model,k=5", "coding", 0.857, 4.00, 2.11),
        ("model,k=5", "math_reasoning", 0.841, 3.88, 2.03),
        ("model,k=5", "summarization", 0.789, 3.37, 1.78),
        ("model,k=5", "translation", 0.612, 2.36, 1.25),
        ("model,k=5", "qa", 0.575, 2.10, 1.15),
        ("model,k=5", "writing", 0.573, 2.25, 1.18),
        ("ngram,k=5", "summarization", 0.722, 2.56, 2.33),
        ("ngram,k=5", "coding", 0.444, 1.28, 1.24),
        ("ngram,k=5", "writing", 0.096, 1.04, 1.01),
    )

    @pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row[0]} {row[1]}")
    def test_a_row(self, row: Any) -> None:
        name, category, alpha, tokens, speed = row
        (method,) = (item for item in carried("replay.json")["methods"] if item["name"] == name)
        found = method["categories"][category]
        counts = found["acceptance"]
        assert round(sum(counts["accepted"]) / sum(counts["tested"]), 3) == alpha
        assert two(1 + sum(counts["accepted"]) / counts["rounds"]) == tokens
        assert two(found["predicted_speedup"]) == speed

    def test_rounds_without_a_draft(self) -> None:
        (method,) = (
            item for item in carried("replay.json")["methods"] if item["name"] == "ngram,k=5"
        )
        counts = method["categories"]["coding"]["acceptance"]
        assert (counts["rounds"] - counts["drafted"][0], counts["rounds"]) == (61, 100)

    @pytest.mark.parametrize("name", ["replay.json", "plan_costs.json"])
    def test_the_page_carries_what_was_measured(self, name: str) -> None:
        """A subset of what the benchmarks recorded, and nothing changed."""
        measured = json.loads((RESULTS / name).read_text())
        assert is_part(carried(name), measured)


def is_part(part: Any, whole: Any) -> bool:
    """Whether all of `part` is in `whole`, and the same there."""
    if isinstance(part, dict):
        return all(name in whole and is_part(value, whole[name]) for name, value in part.items())
    if isinstance(part, list):
        return len(part) <= len(whole) and all(
            any(is_part(item, other) for other in whole) for item in part
        )
    return bool(part == whole) or (
        isinstance(part, float) and math.isclose(part, whole, rel_tol=1e-3)
    )
