"""Greedy answers of a loaded model, plain and speculative, token by token.

Where they diverge, `paceline.testing.differences` decides whether rounding explains it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.generate.api import LanguageModel
from paceline.testing.differences import Parting, first_difference
from paceline.workbench.audit.answers import Answer, NamedPrompt, answer, dtype_of, plainly, text_of
from paceline.workbench.audit.progress import Progress, silent
from paceline.workbench.audit.verdicts import Finding, Verdict

CHECK = "greedy equality"


def check_greedy(
    model: LanguageModel,
    prompts: Sequence[NamedPrompt],
    options: Mapping[str, Any],
    *,
    max_tokens: int,
    progress: Progress = silent,
) -> Finding:
    """Compare greedy answers, prompt by prompt.

    Args:
        model: the target.
        prompts: the prompts to answer.
        options: of `LanguageModel.generate`, as configured; temperature and seed do not matter.
        max_tokens: the longest answer.
        progress: called for each prompt.

    Returns:
        A pass if all tokens are equal; tie-limited if answers diverge only at near-ties; a fault if
        one diverges elsewhere; inconclusive if no answer contains an accepted draft token.
    """
    greedy = {**options, "temperature": 0.0, "max_tokens": max_tokens}
    rows: list[dict[str, Any]] = []
    for number, (name, prompt) in enumerate(prompts):
        progress(number, len(prompts), "greedy answers")
        plain = answer(model, prompt, plainly(greedy), logits=True)
        found = answer(model, prompt, greedy, logits=True)
        parting = first_difference(
            plain.tokens, plain.logits, found.tokens, found.logits, dtype=dtype_of(model)
        )
        rows.append(_row(model, name, plain, found, parting))
    progress(len(prompts), len(prompts), "greedy answers")
    return _finding(rows)


def _row(
    model: LanguageModel, name: str, plain: Answer, found: Answer, parting: Parting | None
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "prompt": name,
        "tokens": len(plain.tokens),
        "drafted": found.num_draft_tokens,
        "accepted": found.num_accepted_tokens,
        "result": "same" if parting is None else parting.label,
    }
    if parting is None:
        return row
    at = parting.position
    return row | {
        "position": at,
        "plain": text_of(model, plain.tokens[at : at + 1]) if at < len(plain.tokens) else "",
        "speculative": text_of(model, found.tokens[at : at + 1]) if at < len(found.tokens) else "",
        # The gap is infinite if one answer has ended; JSON has no infinity.
        "gap": parting.gap if math.isfinite(parting.gap) else None,
        "pass_difference": parting.pass_difference,
        "deviation": parting.deviation,
        "tolerance": parting.tolerance,
    }


def _finding(rows: Sequence[Mapping[str, Any]]) -> Finding:
    kinds = [row["result"] for row in rows]
    ties, faults = kinds.count("tie"), kinds.count("fault")
    accepted = sum(row["accepted"] for row in rows)
    tokens = sum(row["tokens"] for row in rows)
    same = f"{kinds.count('same')} of {len(rows)} answers are identical, token by token"
    if faults:
        first = next(row for row in rows if row["result"] == "fault")
        verdict = Verdict.FAULT
        summary = (
            f"{faults} of {len(rows)} answers diverge where rounding does not explain it; first: "
            f"prompt {first['prompt']}, token {first['position']}: {first['plain']!r} without and "
            f"{first['speculative']!r} with speculation."
        )
    elif not accepted:
        verdict = Verdict.INCONCLUSIVE
        summary = f"{same}, but no draft token was accepted in them, so nothing was tested."
    elif ties:
        verdict = Verdict.TIE_LIMITED
        summary = f"{same}; {ties} diverge at a near-tie of the two best tokens."
    else:
        verdict = Verdict.PASS
        summary = f"{same} ({tokens} tokens, {accepted} of them drafted and accepted)."
    numbers = {"answers": len(rows), "ties": ties, "faults": faults, "tokens": tokens}
    return Finding(CHECK, verdict, summary, numbers | {"accepted": accepted}, tuple(rows))
