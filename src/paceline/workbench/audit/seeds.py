"""Same seed, same text: twice, and under a coupled rule with and without drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.core.traits import traits_of
from paceline.generate.api import LanguageModel
from paceline.testing.differences import first_difference
from paceline.workbench.audit.answers import NamedPrompt, answer, dtype_of, parts_of, plainly
from paceline.workbench.audit.progress import Progress, silent
from paceline.workbench.audit.verdicts import Finding, Verdict

CHECK = "same seed, same text"


def check_seeds(
    model: LanguageModel,
    prompts: Sequence[NamedPrompt],
    options: Mapping[str, Any],
    *,
    max_tokens: int,
    seed: int = 0,
    progress: Progress = silent,
) -> Finding:
    """Answer each prompt twice with one seed; under a coupled rule, also without drafts.

    Under a coupled rule the tokens depend only on the target and the seed (Daliri et al.,
    2408.07978), up to rounding: if they diverge and the passes differ by no more than rounding
    explains, that is a tie.

    Args:
        model: the target.
        prompts: the prompts to answer.
        options: of `LanguageModel.generate`, as configured.
        max_tokens: the longest answer.
        seed: of the first prompt; the i-th prompt has `seed + i`.
        progress: called for each prompt.
    """
    parts = parts_of(model, prompts[0].prompt, {**options, "seed": seed})
    couples = parts.verifier.couples
    if traits_of(parts.controller).uses_clock and not couples:
        return Finding(
            CHECK,
            None,
            f"Not promised: the draft lengths of controller {parts.controller.name!r} depend on "
            f"the clock, and under the rule {parts.verifier.name!r} the text of a seed depends on "
            "them.",
        )
    # Named, so that plain decoding, whose draft length is fixed, uses the same rule.
    options = {name: value for name, value in options.items() if name != "verify_options"}
    options["verify"] = parts.verifier
    rows: list[dict[str, Any]] = []
    for number, (name, prompt) in enumerate(prompts):
        progress(number, len(prompts), CHECK)
        seeded = {**options, "seed": seed + number, "max_tokens": max_tokens}
        one, two = (answer(model, prompt, seeded, logits=couples) for _ in range(2))
        row = {"prompt": name, "seed": seed + number, "tokens": len(one.tokens)}
        row["again"] = "same" if one.tokens == two.tokens else "fault"
        if couples:
            plain = answer(model, prompt, plainly(seeded), logits=True)
            parting = first_difference(
                plain.tokens, plain.logits, one.tokens, one.logits, dtype=dtype_of(model)
            )
            tie = parting is not None and 0 < parting.deviation <= parting.tolerance
            row["plain"] = "same" if parting is None else "tie" if tie else "fault"
        rows.append(row)
    progress(len(prompts), len(prompts), CHECK)
    return _finding(rows, couples)


def _finding(rows: Sequence[Mapping[str, Any]], couples: bool) -> Finding:
    results = [row[key] for row in rows for key in ("again", "plain") if key in row]
    again = [row["again"] for row in rows].count("same")
    summary = f"{again} of {len(rows)} answers were the same again with the same seed"
    if couples:
        plain = [row["plain"] for row in rows]
        summary += f"; {plain.count('same')} equal those of plain decoding with it"
        if ties := plain.count("tie"):
            summary += f", {ties} diverge where rounding decides"
    verdict = Verdict.PASS
    if "fault" in results:
        verdict = Verdict.FAULT
    elif "tie" in results:
        verdict = Verdict.TIE_LIMITED
    return Finding(CHECK, verdict, f"{summary}.", {"answers": len(rows)}, tuple(rows))
