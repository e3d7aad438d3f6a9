"""Greedy answers of two servers: where they part, and what the probabilities there say."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paceline.workbench.audit.endpoint import Reply
from paceline.workbench.audit.texts import (
    LEAST_TOLERANCE,
    MOST_TOLERANCE,
    all_zero,
    deviations,
    made_up,
    part,
)
from paceline.workbench.audit.verdicts import Finding, Verdict

CHECK = "greedy equality"
LOGPROBS = "log-probabilities"


@dataclass(frozen=True, slots=True)
class Answered:
    """The greedy answers to one prompt.

    Args:
        name: of the prompt.
        baseline, again: of the baseline, asked twice.
        candidate: of the server that speculates.
        baseline_told, candidate_told: once more with log-probabilities; None without them.
    """

    name: str
    baseline: Reply
    again: Reply
    candidate: Reply
    baseline_told: Reply | None = None
    candidate_told: Reply | None = None


def compare_greedy(
    answered: Sequence[Answered], *, max_tokens: int, tie_tolerance: float | None = None
) -> Finding:
    """Compare the greedy answers of both servers.

    Returns:
        A fault where one parts and the baseline's probabilities do not explain it, or is longer
        than what was asked for; inconclusive where that cannot be told, or nothing was said;
        tie-limited where all differences are near ties; else a pass.
    """
    unusable = [a.name for a in answered if a.baseline_told and all_zero(a.baseline_told)]
    apart = [
        value
        for item in answered
        if item.baseline_told and item.candidate_told and not unusable
        for value in deviations(item.baseline_told, item.candidate_told)
    ]
    measured = max(apart, default=None)
    tolerance = tie_tolerance
    if tolerance is None:
        tolerance = min(MOST_TOLERANCE, max(LEAST_TOLERANCE, 2 * (measured or 0.0)))
    rows = [_row(item, None if unusable else item.baseline_told, tolerance) for item in answered]
    for row, item in zip(rows, answered, strict=True):
        count = item.candidate.num_tokens
        if count is not None and count > max_tokens:
            row |= {"result": "fault", "reason": f"{count} tokens where {max_tokens} were allowed"}
    numbers = {
        "answers": len(rows),
        "compared_log_probabilities": len(apart),
        "largest_difference_of_a_log_probability": measured,
        "tie_tolerance": tolerance,
        "candidate_gives_log_probabilities": any(a.candidate_told for a in answered),
        "baseline_gives_log_probabilities": any(a.baseline_told for a in answered),
    }
    return _finding(rows, numbers)


def compare_logprobs(answered: Sequence[Answered]) -> Finding:
    """Hold the log-probabilities of the server that speculates against those of the baseline.

    Returns:
        A fault where it tells exactly 0 for tokens that the baseline holds to be uncertain, in the
        same context: they were not computed. No verdict where there is nothing to compare.
    """
    told = [
        (item.name, item.candidate_told, item.baseline_told)
        for item in answered
        if item.candidate_told and item.baseline_told and not all_zero(item.baseline_told)
    ]
    if not told:
        return Finding(LOGPROBS, None, "Not compared: not both servers give log-probabilities.")
    compared, apart = 0, 0.0
    rows: list[dict[str, Any]] = []
    wrong = 0
    for name, candidate, baseline in told:
        places = made_up(candidate, baseline)
        values = deviations(baseline, candidate)
        compared += len(values)
        apart = max([apart, *values])
        wrong += len(places)
        if places:
            place, token, logprob = places[0]
            rows.append(
                {
                    "prompt": name,
                    "tokens_told_0": len(places),
                    "first_position": place,
                    "token": token,
                    "baseline_log_probability": logprob,
                }
            )
    numbers = {
        "prompts": len(told),
        "compared": compared,
        "largest_difference": apart,
        "told_0": wrong,
    }
    if wrong:
        summary = (
            f"The server tells a log-probability of exactly 0 for {wrong} tokens that are not "
            f"certain, in answers to {len(rows)} of {len(told)} prompts: it does not compute them. "
            f"First: prompt {rows[0]['prompt']}, token {rows[0]['first_position']} "
            f"({rows[0]['token']!r}), {rows[0]['baseline_log_probability']:.2f} by the baseline."
        )
        return Finding(LOGPROBS, Verdict.FAULT, summary, numbers, tuple(rows))
    summary = f"{compared} log-probabilities differ by at most {apart:.3g} nats."
    return Finding(LOGPROBS, Verdict.PASS, summary, numbers)


def _row(item: Answered, told: Reply | None, tolerance: float) -> dict[str, Any]:
    parting = part(item.baseline.text, item.candidate.text, told, tolerance=tolerance)
    row: dict[str, Any] = {
        "prompt": item.name,
        "characters": len(item.baseline.text),
        "result": "same" if parting is None else parting.label,
        "baseline_repeats": item.baseline.text == item.again.text,
    }
    return row if parting is None else row | parting.to_json()


def _finding(rows: list[dict[str, Any]], numbers: dict[str, Any]) -> Finding:
    kinds = [row["result"] for row in rows]
    same = f"{kinds.count('same')} of {len(rows)} answers are the same"
    if "fault" in kinds:
        first = next(row for row in rows if row["result"] == "fault")
        verdict = Verdict.FAULT
        summary = f"{kinds.count('fault')} of {len(rows)} answers are wrong; {_told(first)}"
    elif "unclassified" in kinds:
        first = next(row for row in rows if row["result"] == "unclassified")
        verdict = Verdict.INCONCLUSIVE
        summary = (
            f"{same}; {kinds.count('unclassified')} part, and whether that is a near tie or a "
            f"fault cannot be told ({first['reason']}; first: prompt {first['prompt']})."
        )
    elif not any(row["characters"] for row in rows):
        verdict = Verdict.INCONCLUSIVE
        summary = "The baseline answered every prompt with an empty text."
    elif "tie" in kinds:
        verdict = Verdict.TIE_LIMITED
        widest = max(row["gap"] for row in rows if row["result"] == "tie")
        summary = (
            f"{same}; {kinds.count('tie')} part at near ties: the baseline holds both tokens to be "
            f"as probable up to {widest:.3f} nats ({numbers['tie_tolerance']:.3f} are allowed)."
        )
    else:
        verdict = Verdict.PASS
        summary = f"{same}, character by character."
    return Finding(CHECK, verdict, summary, numbers, tuple(_alike(rows)))


def _told(row: dict[str, Any]) -> str:
    if row.get("gap") is None:
        return f"prompt {row['prompt']}: {row['reason']}."
    bound = "at least " if row["gap_is_a_lower_bound"] else ""
    return (
        f"first prompt {row['prompt']} at character {row['character']}: {row['baseline']!r} "
        f"without speculation, {row['candidate']!r} with it, {bound}{row['gap']:.2f} nats less "
        "probable."
    )


def _alike(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows with the same keys."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    return [{key: row.get(key) for key in keys} for row in rows]
