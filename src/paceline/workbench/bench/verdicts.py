"""The findings of a benchmark in sentences, none stronger than the measurements allow."""

from __future__ import annotations

from paceline.workbench.bench import cells
from paceline.workbench.bench.results import BenchResult, Difference
from paceline.workbench.bench.statistics import FEWEST_PROMPTS
from paceline.workbench.report import Verdict

NOISY = 0.2
"""The deviation of one run above which a report says that the machine was busy."""

_SHOWN = 5
"""The number of differing answers that a sentence names."""


def verdicts(result: BenchResult) -> list[Verdict]:
    """The findings, in sentences."""
    found: list[Verdict | None] = []
    if result.interrupted:
        found.append(
            Verdict(
                "warning",
                "interrupted",
                "Stopped before the end; these are the measurements so far.",
            )
        )
    found += [_best(result), _harm(result), _sameness(result), _noise(result)]
    return [verdict for verdict in found if verdict is not None]


def _noise(result: BenchResult) -> Verdict | None:
    noise = result.noise
    if noise.deviation is None:
        return None
    busy = noise.deviation > NOISY
    advice = " The machine was busy: on a quiet one intervals are narrower." if busy else ""
    return Verdict(
        "warning" if busy else "neutral",
        "noise",
        f"The speed of a run varies by {noise.deviation:.1%} (standard deviation, from "
        f"{noise.num_pairs} pairs of plain runs); the second plain run of a pair was "
        f"{noise.ratio:.3f} times as fast as the first.{advice}",
    )


def _best(result: BenchResult) -> Verdict | None:
    ratios = {
        place: ratio
        for place in range(1, len(result.methods))
        if (ratio := result.group(place).ratio) is not None
    }
    if not ratios:
        return None

    def named(place: int) -> str:
        if not place:
            return "plain decoding"
        return f"`{result.methods[place].name}` ({cells.with_interval(ratios[place])})"

    if impossible := [place for place, ratio in ratios.items() if not ratio.is_possible]:
        place = max(impossible, key=lambda place: ratios[place].value / ratios[place].possible)
        ratio = ratios[place]
        return Verdict(
            "warning",
            "measure again",
            f"`{result.methods[place].name}` was {ratio.value:.2f} times as fast as plain "
            f"decoding, but its tokens per round allow at most {ratio.possible:.2f}. That is "
            "noise, and it may affect every other figure here. Close other programs, and measure "
            "again, for example with --repeats 3.",
        )
    first = max(ratios, key=lambda place: ratios[place].value)
    if ratios[first].num_prompts < FEWEST_PROMPTS:
        return Verdict(
            "warning",
            "undecided",
            f"The best speed-up over plain decoding is that of {named(first)}. Fewer than "
            f"{FEWEST_PROMPTS} prompts say little about others: use more.",
        )
    best, *rest = result.fastest
    if not best:
        return Verdict(
            "bad",
            "slower" if not rest else "no gain",
            "No method was faster than plain decoding. The best speed-up was that of "
            f"{named(first)}.",
        )
    if not rest:
        return Verdict(
            "good", "faster", f"The fastest was {named(best)}, as speed-up over plain decoding."
        )
    if 0 not in rest:
        return Verdict(
            "good",
            "faster",
            f"All are faster than plain decoding, and too close to distinguish: "
            f"{', '.join(map(named, result.fastest))}. Use more prompts, or --repeats.",
        )
    others = ", ".join(named(place) for place in rest if place)
    return Verdict(
        "warning",
        "undecided",
        f"The best speed-up over plain decoding is that of {named(best)}; noise alone could "
        f"explain it. {f'Nor does it clearly differ from {others}. ' if others else ''}Use more "
        "prompts, or --repeats.",
    )


def _harm(result: BenchResult) -> Verdict | None:
    if result.noise.deviation is None:
        return None
    counts = {
        method.name: sum(ratio.is_slower for ratio in result.prompt_ratios(place))
        for place, method in enumerate(result.methods)
        if place
    }
    harmed = {name: count for name, count in counts.items() if count}
    if not harmed:
        return Verdict(
            "good", "no harm", "On no prompt was a method slower than plain decoding beyond noise."
        )
    listed = ", ".join(f"`{name}` on {count}" for name, count in harmed.items())
    return Verdict(
        "warning", "slower", f"Prompts slower than with plain decoding beyond noise: {listed}."
    )


def _sameness(result: BenchResult) -> Verdict | None:
    if not result.differences:
        return Verdict(
            "neutral", "not compared", "Tokens are sampled, so they need not be the same."
        )
    every = [item for found in result.differences.values() for item in found]
    if not every:
        return Verdict("good", "same tokens", "Every answer had the tokens of plain decoding.")
    by_label: dict[str, list[Difference]] = {}
    for item in every:
        by_label.setdefault(item.label, []).append(item)
    plural = {"tie": "ties", "fault": "faults"}
    listed = ", ".join(
        f"{len(found)} {plural.get(label, label) if len(found) > 1 else label}"
        for label, found in by_label.items()
    )
    where = ", ".join(
        f"{result.items[item.item].id} (`{result.methods[item.method].name}`, token "
        f"{item.position + 1})"
        for item in every[:_SHOWN]
    ) + (", ..." if len(every) > _SHOWN else "")
    text = (
        f"{len(every)} answers differ from plain decoding: {listed}. {where}. Ties are decided by "
        "rounding; invariant mode (`--invariant`) removes them."
    )
    if "fault" in by_label:
        return Verdict("bad", "fault", text)
    return Verdict("warning", "ties", text)
