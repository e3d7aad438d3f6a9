"""The check that sampled answers of two sides come from one distribution."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.checks import require_finite, require_int
from paceline.generate.api import LanguageModel
from paceline.workbench.audit.answers import NamedPrompt, answers, parts_of, plainly
from paceline.workbench.audit.power import LEAST, achieved_power, num_answers, smallest_effect
from paceline.workbench.audit.progress import Progress, silent
from paceline.workbench.audit.twosample import NUM_TESTS, Stratum, Units, compare
from paceline.workbench.audit.verdicts import Finding, Verdict

CHECK = "sampled answers"

BATCH = 16
"""The number of sampled answers that share a target pass."""


@dataclass(frozen=True, slots=True)
class SamplingSettings:
    """How much is sampled, and how reliable a verdict is.

    Args:
        samples: answers per prompt and side; None means the number that `effect` and `power`
            require (`power.num_answers`).
        effect: the total variation to detect, see the module `power`.
        power: the probability of detecting it.
        false_alarm_rate: of all two-sample tests of an audit together.
        max_tokens: the maximum length of a sampled answer.
        seed: of the samples and of the permutations.
    """

    samples: int | None = None
    effect: float = 0.15
    power: float = 0.9
    false_alarm_rate: float = 0.001
    max_tokens: int = 8
    seed: int = 0

    def __post_init__(self) -> None:
        if self.samples is not None:
            require_int("samples", self.samples, low=1)
        require_int("max_tokens", self.max_tokens, low=1)
        require_int("seed", self.seed, low=0, high=2**32)
        for name in ("effect", "power", "false_alarm_rate"):
            require_finite(self, name, getattr(self, name), low=1e-6, high=1 - 1e-6)

    def num_samples(self, num_prompts: int) -> int:
        """The answers per prompt and side."""
        if self.samples is not None:
            return self.samples
        return num_answers(
            num_prompts,
            effect=self.effect,
            power=self.power,
            false_alarm_rate=self.false_alarm_rate,
        )


def check_sampling(
    model: LanguageModel,
    prompts: Sequence[NamedPrompt],
    options: Mapping[str, Any],
    settings: SamplingSettings,
    *,
    progress: Progress = silent,
) -> Finding:
    """Sample answers of a model without and with speculation, and compare their distributions.

    Every answer has its own seed, so that the two sides are independent.

    Args:
        model: the target.
        prompts: the prompts to answer.
        options: of `LanguageModel.generate`, as configured, at a temperature above 0.
        settings: see `SamplingSettings`.
        progress: called for each prompt.
    """
    n = settings.num_samples(len(prompts))
    # The rule is that of an answer without a seed: with a seed, another rule may be the default.
    verifier = parts_of(model, prompts[0].prompt, options).verifier
    chosen = {name: value for name, value in options.items() if name != "verify_options"}
    chosen["verify"] = verifier
    sides = plainly(chosen), chosen
    strata: list[Stratum] = []
    accepted = 0
    for number, (name, prompt) in enumerate(prompts):
        drawn: list[list[Units]] = []
        for side, how in enumerate(sides):
            progress(2 * number + side, 2 * len(prompts), CHECK)
            first = settings.seed + (2 * number + side) * n
            found: list[Units] = []
            for start in range(0, n, BATCH):
                size = min(BATCH, n - start)
                batch = answers(
                    model,
                    [prompt] * size,
                    {**how, "max_tokens": settings.max_tokens},
                    seeds=range(first + start, first + start + size),
                )
                found += [answer.tokens for answer in batch]
                accepted += sum(answer.num_accepted_tokens for answer in batch)
            drawn.append(found)
        strata.append(Stratum(name, *drawn))
    progress(2 * len(prompts), 2 * len(prompts), CHECK)
    finding = compare_samples(strata, settings)
    if finding.verdict is Verdict.PASS and not accepted:
        return replace(
            finding,
            verdict=Verdict.INCONCLUSIVE,
            summary="No draft token was accepted in the sampled answers, so nothing was tested.",
        )
    return replace(finding, numbers={**finding.numbers, "accepted": accepted})


def compare_samples(
    strata: Sequence[Stratum], settings: SamplingSettings, *, check: str = CHECK
) -> Finding:
    """Test whether the two sides of sampled answers come from one distribution.

    Returns:
        A fault if a corrected p-value is at most the false-alarm rate; inconclusive if the answers
        would have shown the stated difference with less than the stated power; else a pass.
    """
    results = compare(strata, false_alarm_rate=settings.false_alarm_rate, seed=settings.seed)
    n = min(min(len(s.plain), len(s.speculative)) for s in strata)
    level = settings.false_alarm_rate / NUM_TESTS
    sized = {"answers": n, "num_prompts": len(strata), "level": level}
    reached = achieved_power(results[0], effect=settings.effect, **sized)  # type: ignore[arg-type]
    visible = smallest_effect(results[0], power=settings.power, **sized)  # type: ignore[arg-type]
    least = min(results, key=lambda result: result.adjusted)
    size = f"{n} answers to each of {len(strata)} prompts on each side"
    tests = f"smallest of {len(results)} corrected p-values {least.adjusted:.2g} ({least.name})"
    if least.adjusted <= settings.false_alarm_rate:
        verdict = Verdict.FAULT
        summary = f"The answers come from different distributions: {tests}, {size}."
    elif n < LEAST or reached < settings.power:
        verdict = Verdict.INCONCLUSIVE
        summary = (
            f"Too few samples: {size} would have shown a total variation of {settings.effect:g} "
            f"with probability {reached:.2f}; {settings.power:g} was asked for. Nothing was found "
            f"({tests})."
        )
    else:
        verdict = Verdict.PASS
        summary = (
            f"No difference: {tests}, {size}. A total variation of {visible:.3f} per token would "
            f"have been seen with probability {settings.power:g}."
        )
    numbers = {
        "answers_per_prompt_and_side": n,
        "prompts": len(strata),
        "effect": settings.effect,
        "power_asked_for": settings.power,
        "power": reached,
        "smallest_effect_seen": visible,
        "false_alarm_rate": settings.false_alarm_rate,
        "correction": "Holm",
    }
    return Finding(check, verdict, summary, numbers, tuple(r.to_json() for r in results))
