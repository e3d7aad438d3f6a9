"""A recommendation as a report: what to use, its gain, and the standings."""

from __future__ import annotations

from paceline.workbench.bench import cells
from paceline.workbench.bench.report import about_blocks
from paceline.workbench.bench.statistics import FEWEST_PROMPTS, Ratio
from paceline.workbench.recommend.race import FIRST_BLOCKS
from paceline.workbench.recommend.results import Recommendation
from paceline.workbench.report import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Section,
    Table,
    Verdict,
    figures,
)

DEFINITIONS = (
    (
        "speed-up",
        "Tokens per second divided by those of plain decoding on the same prompts, measured "
        "alternately: for decoding alone, as in the first column of `paceline bench`, and for "
        "whole answers, which include the time to read the prompt. The geometric mean over "
        "prompts, with its 95 % interval.",
    ),
    (
        "against the fastest",
        "The speed of a method divided by that of the fastest in the race, for whole answers, on "
        "the prompts that both answered. The fastest of many is partly the luckiest, so its gain "
        "is measured again on other prompts.",
    ),
    ("tokens per round", "Tokens per pass of the target; plain decoding has 1.00."),
)


def report(found: Recommendation, *, plots: bool = True) -> Report:
    """The whole report; plots need matplotlib."""
    sections = [
        *terminal_sections(found),
        Section("Definitions", (Definitions(DEFINITIONS),)),
        Section("How it was measured", about_blocks(found.about)),
    ]
    if plots:
        values = {
            "speed": {
                found.methods[one.place].name: (one.against_best, None, None)
                for one in found.standings
            }
        }
        figure = figures.intervals(values, label="speed against the fastest", reference=1.0)
        svg = figures.inline_svg(figure, "race", "Speed of each method against the fastest")
        sections.insert(1, Section("The race", (Figure("Speed against the fastest", svg),)))
    prompts = len({entry.run.item for entry in found.measured.entries})
    return Report(
        f"Paceline recommend: {found.about.get('model', 'a model')}",
        f"{len(found.standings)} methods on {prompts} prompts, by successive elimination.",
        sections,
    )


def terminal_sections(found: Recommendation) -> list[Section]:
    """The sections that the terminal shows."""
    blocks: list[Block] = [*verdicts(found), standings_table(found)]
    if found.is_possible:
        blocks.append(Code(command(found)))
    return [Section("Result", tuple(blocks))]


def verdicts(found: Recommendation) -> list[Verdict]:
    """What to use and what it gains, in sentences."""
    said = [_advice(found)]
    measured = found.measured
    if (count := measured.race.num_blocks) <= FIRST_BLOCKS:
        said.append(
            Verdict(
                "warning",
                "too little time",
                f"The choice was made on {count} prompt{'' if count == 1 else 's'}, which is "
                "hardly more than chance. Give a larger --budget, or wait until the machine is "
                "idle.",
            )
        )
    if measured.interrupted:
        said.append(
            Verdict(
                "warning",
                "interrupted",
                "Stopped before the end; these are the measurements so far.",
            )
        )
    if measured.checks_missing and not measured.interrupted:
        count = len(measured.checks) // 2
        when = f"after {count} prompt{'s' if count > 1 else ''}" if count else "before a prompt"
        said.append(
            Verdict(
                "warning",
                "too little time",
                f"The time was up {when} of those that measure the gain. Give a larger --budget.",
            )
        )
    if (overrun := found.overrun) is not None:
        said.append(
            Verdict(
                "warning",
                "over the budget",
                f"It took {overrun[0]:.0f} s where the budget was {overrun[1]:.0f} s: the least "
                "that can be measured, an answer of each of the most promising methods, takes "
                "that long here. Give a larger --budget, or a smaller --max-tokens.",
            )
        )
    if measured.checks and not measured.fresh:
        said.append(
            Verdict(
                "neutral",
                "few prompts",
                "The gain was measured on the prompts that decided the choice, so it may be a "
                "little too high. With eight prompts or more, a third are reserved for it.",
            )
        )
    missing = [
        *(f"{found.methods[place].name} (no time)" for place in measured.left_out),
        *(f"{name} ({reason})" for name, reason in found.refused.items()),
    ]
    if missing:
        said.append(
            Verdict(
                "neutral", "not tried", f"{'; '.join(missing)}. A larger --budget gives more time."
            )
        )
    return said


def _advice(found: Recommendation) -> Verdict:
    name, gain, decoding = found.method.name, found.gain, found.decoding_gain
    if not found.is_possible and decoding is not None:
        return Verdict(
            "warning",
            "measure again",
            f"The best method was {decoding.value:.2f} times as fast as plain decoding, but its "
            f"tokens per round allow at most {decoding.possible:.2f}: that is noise. Close other "
            "programs, and start again.",
        )
    if not found.chosen:
        return Verdict(
            "neutral",
            "use plain decoding",
            "No method was faster here on these prompts" + _with_gain(found) + ".",
        )
    if gain is None or decoding is None:
        return Verdict(
            "warning", "use", f"`{name}`, the fastest so far; its gain was not measured."
        )
    text = (
        f"`{name}`: {_with_interval(decoding)} times the speed of plain decoding, and "
        f"{_with_interval(gain)} times for whole answers, measured on {_prompts(gain)}."
    )
    if gain.low is None:
        return Verdict(
            "good", "use", f"{text} An interval needs at least {FEWEST_PROMPTS} prompts."
        )
    if gain.low <= 1:
        return Verdict(
            "warning",
            "use",
            f"{text} The interval includes 1, so it may not pay: try more prompts.",
        )
    return Verdict("good", "use", text)


def _with_gain(found: Recommendation) -> str:
    """The winner of the race, if the check did not confirm its gain."""
    gain, winner = found.gain, found.measured.winner
    if gain is None or not winner:
        return ""
    return f"; the best, `{found.methods[winner].name}`, had {_with_interval(gain)} times its speed"


def _prompts(ratio: Ratio) -> str:
    return f"{ratio.num_prompts} prompt{'' if ratio.num_prompts == 1 else 's'}"


def _with_interval(ratio: Ratio) -> str:
    if ratio.low is None or ratio.high is None:
        return f"{ratio.value:.2f}"
    return f"{ratio.value:.2f} ({ratio.low:.2f} to {ratio.high:.2f})"


def standings_table(found: Recommendation) -> Table:
    """All methods, the fastest first."""
    rows = tuple(
        (
            f"`{found.methods[one.place].name}`",
            cells.number(one.against_best, 2),
            cells.number(one.tokens_a_round, 2),
            str(one.num_prompts),
            "" if one.left else "to the end",
        )
        for one in found.standings
    )
    return Table(
        ("method", "against the fastest", "tokens per round", "prompts", "stayed"),
        rows,
        caption="The race: whole answers; slower methods were dropped early.",
    )


def command(found: Recommendation) -> str:
    """The command that uses the settings."""
    file = found.about.get("settings_file") or "SETTINGS"
    return f"paceline generate --model {found.about.get('model')} --settings {file}"
