"""Greedy answers of two servers: where they diverge, and whether the probabilities explain it."""

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
        baseline, again: two answers of the baseline.
        candidate: the answer of the server that speculates.
        baseline_scored, candidate_scored: the answers again, with log-probabilities; None without.
    """

    name: str
    baseline: Reply
    again: Reply
    candidate: Reply
    baseline_scored: Reply | None = None
    candidate_scored: Reply | None = None


def compare_greedy(
    answered: Sequence[Answered], *, max_tokens: int, tie_tolerance: float | None = None
) -> Finding:
    """Compare the greedy answers of both servers.

    Returns:
        A fault if one diverges and the baseline's probabilities do not explain it, or if it is too
        long; inconclusive if that cannot be decided, or if all answers are empty; tie-limited if
        all differences are near-ties; else a pass.
    """
    unusable = [a.name for a in answered if a.baseline_scored and all_zero(a.baseline_scored)]
    apart = [
        value
        for item in answered
        if item.baseline_scored and item.candidate_scored and not unusable
        for value in deviations(item.baseline_scored, item.candidate_scored)
    ]
    measured = max(apart, default=None)
    tolerance = tie_tolerance
    if tolerance is None:
        tolerance = min(MOST_TOLERANCE, max(LEAST_TOLERANCE, 2 * (measured or 0.0)))
    rows = [_row(item, None if unusable else item.baseline_scored, tolerance) for item in answered]
    for row, item in zip(rows, answered, strict=True):
        count = item.candidate.num_tokens
        if count is not None and count > max_tokens:
            row |= {"result": "fault", "reason": f"{count} tokens, and {max_tokens} were allowed"}
    numbers = {
        "answers": len(rows),
        "compared_log_probabilities": len(apart),
        "largest_difference_of_a_log_probability": measured,
        "tie_tolerance": tolerance,
        "candidate_gives_log_probabilities": any(a.candidate_scored for a in answered),
        "baseline_gives_log_probabilities": any(a.baseline_scored for a in answered),
    }
    return _finding(rows, numbers)


def compare_logprobs(answered: Sequence[Answered]) -> Finding:
    """Compare the log-probabilities of the server that speculates with those of the baseline.

    Returns:
        A fault if it reports exactly 0 for tokens that are uncertain for the baseline in the same
        context: they were not computed. No verdict if there is nothing to compare.
    """
    compared_answers = [
        (item.name, item.candidate_scored, item.baseline_scored)
        for item in answered
        if item.candidate_scored and item.baseline_scored and not all_zero(item.baseline_scored)
    ]
    if not compared_answers:
        return Finding(
            LOGPROBS, None, "Not compared: at least one server gives no log-probabilities."
        )
    compared, apart = 0, 0.0
    rows: list[dict[str, Any]] = []
    wrong = 0
    for name, candidate, baseline in compared_answers:
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
                    "tokens_reported_0": len(places),
                    "first_position": place,
                    "token": token,
                    "baseline_log_probability": logprob,
                }
            )
    numbers = {
        "prompts": len(compared_answers),
        "compared": compared,
        "largest_difference": apart,
        "reported_0": wrong,
    }
    if wrong:
        summary = (
            f"The server reports a log-probability of exactly 0 for {wrong} tokens that are not "
            f"certain, in answers to {len(rows)} of {len(compared_answers)} prompts: it does not "
            f"compute them. First: prompt {rows[0]['prompt']}, token {rows[0]['first_position']} "
            f"({rows[0]['token']!r}), {rows[0]['baseline_log_probability']:.2f} for the baseline."
        )
        return Finding(LOGPROBS, Verdict.FAULT, summary, numbers, tuple(rows))
    summary = f"{compared} log-probabilities differ by at most {apart:.3g} nats."
    return Finding(LOGPROBS, Verdict.PASS, summary, numbers)


def _row(item: Answered, scored: Reply | None, tolerance: float) -> dict[str, Any]:
    parting = part(item.baseline.text, item.candidate.text, scored, tolerance=tolerance)
    row: dict[str, Any] = {
        "prompt": item.name,
        "characters": len(item.baseline.text),
        "result": "same" if parting is None else parting.label,
        "baseline_repeats": item.baseline.text == item.again.text,
    }
    return row if parting is None else row | parting.to_json()


def _finding(rows: list[dict[str, Any]], numbers: dict[str, Any]) -> Finding:
    kinds = [row["result"] for row in rows]
    same = f"{kinds.count('same')} of {len(rows)} answers are identical"
    if "fault" in kinds:
        first = next(row for row in rows if row["result"] == "fault")
        verdict = Verdict.FAULT
        summary = f"{kinds.count('fault')} of {len(rows)} answers are wrong; {_described(first)}"
    elif "unclassified" in kinds:
        first = next(row for row in rows if row["result"] == "unclassified")
        verdict = Verdict.INCONCLUSIVE
        summary = (
            f"{same}; {kinds.count('unclassified')} diverge, and whether that is a near-tie or a "
            f"fault is unknown ({first['reason']}; first: prompt {first['prompt']})."
        )
    elif not any(row["characters"] for row in rows):
        verdict = Verdict.INCONCLUSIVE
        summary = "The baseline gave an empty answer to every prompt."
    elif "tie" in kinds:
        verdict = Verdict.TIE_LIMITED
        widest = max(row["gap"] for row in rows if row["result"] == "tie")
        summary = (
            f"{same}; {kinds.count('tie')} diverge at near-ties: for the baseline both tokens are "
            f"as probable up to {widest:.3f} nats ({numbers['tie_tolerance']:.3f} are allowed)."
        )
    else:
        verdict = Verdict.PASS
        summary = f"{same}, character by character."
    return Finding(CHECK, verdict, summary, numbers, tuple(_alike(rows)))


def _described(row: dict[str, Any]) -> str:
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
