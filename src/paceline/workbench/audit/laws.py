"""The exact output distribution of a configuration, by enumeration on scripted targets.

Every outcome of every draft, test and draw is run through the engine, with the drafter, the rule
and the controller as configured. The result is the distribution of the answer in float64, which is
compared with that of plain decoding: no samples, no false alarms. (That the two are equal is proved
in Leviathan et al., 2211.17192, appendix A.1.)
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from paceline.controllers.fixed import FixedController
from paceline.core.events import Round
from paceline.core.protocols import Noise
from paceline.core.sampling import SamplingParams
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.errors import ContractViolation, PacelineError
from paceline.sampling.noise import SeededNoise
from paceline.testing.law import output_law
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.audit.scripts import (
    Parts,
    Script,
    in_front_of,
    names_tokens,
    of_scripts,
    scripts,
)
from paceline.workbench.audit.verdicts import Finding, Verdict

CHECK = "exact distribution"
TOLERANCE = 1e-9
"""The largest difference of a probability that float64 explains."""

MAX_RUNS = 2_000
"""The most runs for one distribution; answers are as long as that allows."""

LONGEST = 6
"""The longest answers whose distribution is computed, in tokens."""

NUM_SEEDS = 100
"""Under a coupled rule: the number of seeds that have to give the tokens of plain decoding."""

Tokens = tuple[int, ...]
_FAILURES = (PacelineError, ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError)


@dataclass(slots=True)
class Counts:
    """What happened over all runs of one case."""

    runs: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0

    def add(self, event: Round) -> None:
        """Count a round."""
        self.drafted += event.num_draft_tokens
        self.accepted += event.num_accepted_tokens
        self.rejected += event.num_draft_tokens > event.num_accepted_tokens


@dataclass(frozen=True, slots=True)
class Case:
    """The distributions for one prompt and one scripted target.

    Args:
        script, prompt, temperature: what was run.
        num_tokens: the length of the answers.
        counts: over all runs of the configuration.
        worst: the answer whose probability differs most.
        found, expected: its probability, and under plain decoding.
        distance: total variation between the two distributions.
    """

    script: str
    prompt: Tokens
    temperature: float
    num_tokens: int
    counts: Counts
    worst: Hashable
    found: float
    expected: float
    distance: float

    @property
    def differs(self) -> bool:
        """Whether the distribution differs from that of plain decoding."""
        return abs(self.found - self.expected) > TOLERANCE

    def to_json(self) -> dict[str, Any]:
        """The case as a row of evidence."""
        return {
            "target": self.script,
            "prompt": list(self.prompt),
            "temperature": self.temperature,
            "answer_tokens": self.num_tokens,
            "runs": self.counts.runs,
            "drafted": self.counts.drafted,
            "accepted": self.counts.accepted,
            "rejected": self.counts.rejected,
            "worst_answer": list(self.worst) if isinstance(self.worst, tuple) else self.worst,
            "probability": self.found,
            "plain_probability": self.expected,
            "total_variation": self.distance,
        }


def check_law(
    parts: Parts,
    params: Sequence[SamplingParams],
    *,
    on: Sequence[Script] | None = None,
    max_runs: int = MAX_RUNS,
) -> Finding:
    """Compare the output distribution of a configuration with that of plain decoding.

    Args:
        parts: drafter, rule and controller, as configured.
        params: sampling options to check under.
        on: the scripted targets; None means those of `scripts`.
        max_runs: see `MAX_RUNS`.

    Returns:
        A fault if a distribution differs; inconclusive if nothing was ever drafted; a finding
        without a verdict, with the reason, if the drafter cannot draft for a scripted target.

    Example:
        >>> from paceline.drafters.ngram import NgramDrafter
        >>> parts = Parts(NgramDrafter(), TokenVerifier(), FixedController(2))
        >>> check_law(parts, [SamplingParams(temperature=1.0)], max_runs=100).verdict.value
        'pass'
    """
    cases: list[Case] = []
    try:
        for script in scripts() if on is None else on:
            staged = in_front_of(script, parts)
            for options in params:
                for prompt in script.prompts:
                    stage = _Stage(script, prompt, of_scripts(options), staged, max_runs)
                    cases.append(stage.coupled() if parts.verifier.couples else stage.enumerated())
    except ContractViolation as error:
        return Finding(CHECK, Verdict.FAULT, f"A contract was broken: {error}.")
    except _FAILURES as error:
        reason = str(error) if isinstance(error, PacelineError) else repr(error)
        return Finding(
            CHECK,
            None,
            f"Left out: drafter {parts.drafter.name!r} cannot draft for a scripted target "
            f"({reason}).",
        )
    return _finding(cases, parts, names=any(map(names_tokens, params)))


def _finding(cases: Sequence[Case], parts: Parts, *, names: bool) -> Finding:
    wrong = [case for case in cases if case.differs]
    drafted, accepted, rejected = (
        sum(getattr(case.counts, name) for case in cases)
        for name in ("drafted", "accepted", "rejected")
    )
    vacuous = parts.drafter.name != "none" and not drafted
    verdict = _verdict(wrong, vacuous)
    worst = max(cases, key=lambda case: case.distance)
    runs = sum(case.counts.runs for case in cases)
    if wrong:
        lossy = "" if parts.verifier.exact else " The rule declares itself lossy."
        summary = (
            f"The distribution differs from plain decoding in {len(wrong)} of {len(cases)} cases, "
            f"by a total variation of up to {worst.distance:.4f} (target of {worst.script}).{lossy}"
        )
    elif vacuous:
        summary = "Nothing was drafted for the scripted targets, so nothing was tested."
    else:
        summary = (
            f"The distribution is that of plain decoding in all {len(cases)} cases, over {runs} "
            f"runs with {accepted} accepted draft tokens and {rejected} rejections; the largest "
            f"total variation is {worst.distance:.1e}."
        )
    if names:
        summary += " Options that name tokens of the model's vocabulary were left out here."
    return Finding(
        CHECK,
        verdict,
        summary,
        {"tolerance": TOLERANCE, "cases": len(cases), "runs": runs},
        tuple(case.to_json() for case in cases),
    )


def _verdict(wrong: Sequence[Case], vacuous: bool) -> Verdict:
    if wrong:
        return Verdict.FAULT
    return Verdict.INCONCLUSIVE if vacuous else Verdict.PASS


@dataclass(frozen=True, slots=True)
class _Stage:
    """One prompt, one scripted target, one set of sampling options."""

    script: Script
    prompt: Tokens
    params: SamplingParams
    parts: Parts
    max_runs: int

    def enumerated(self) -> Case:
        """The distributions of the longest answers that `max_runs` allows."""
        best: tuple[int, Counts, dict[Tokens, float]] | None = None
        for length in range(1, LONGEST + 1):
            counts = Counts()
            try:
                law = self._law(self.parts, length, counts)
            except ContractViolation as error:
                if best is None or "cases" not in str(error):
                    raise
                break
            growth = counts.runs / best[1].runs if best else 2.0
            best = length, counts, law
            if counts.runs * growth > self.max_runs:
                break
        assert best is not None
        return self._case(*best)

    def coupled(self) -> Case:
        """Under a coupled rule: its draws have the right distribution, and drafts change no token.

        Races that share their noise cannot be enumerated with two distributions at once. So the
        distribution is computed without a draft, and with drafts the tokens have to be the same,
        seed by seed.
        """
        counts, length = Counts(), 3
        plain = Parts(NoDrafter(), self.parts.verifier, FixedController(0))
        case = self._case(length, counts, self._law(plain, length, counts))
        for seed in range(NUM_SEEDS):
            expected = self._play(plain, LONGEST, SeededNoise(seed), Counts())
            found = self._play(self.parts, LONGEST, SeededNoise(seed), counts)
            if found != expected:
                return Case(
                    self.script.name,
                    self.prompt,
                    self.params.temperature,
                    LONGEST,
                    counts,
                    f"seed {seed}: {list(found)}, plain decoding {list(expected)}",
                    found=1.0,
                    expected=0.0,
                    distance=1.0,
                )
        return case

    def _law(self, parts: Parts, length: int, counts: Counts) -> dict[Tokens, float]:
        return output_law(
            lambda noise: self._play(parts, length, noise, counts), max_runs=self.max_runs
        )

    def _case(self, length: int, counts: Counts, found: Mapping[Tokens, float]) -> Case:
        plain = Parts(NoDrafter(), TokenVerifier(), FixedController(0))
        expected = self._law(plain, length, Counts())
        apart = {
            answer: abs(found.get(answer, 0.0) - expected.get(answer, 0.0))
            for answer in found.keys() | expected.keys()
        }
        worst = max(sorted(apart), key=apart.__getitem__)
        return Case(
            self.script.name,
            self.prompt,
            self.params.temperature,
            length,
            counts,
            worst,
            found.get(worst, 0.0),
            expected.get(worst, 0.0),
            sum(apart.values()) / 2,
        )

    def _play(self, parts: Parts, length: int, noise: Noise, counts: Counts) -> Tokens:
        counts.runs += 1
        request = Request(
            prompt=self.prompt,
            drafter=parts.drafter,
            controller=parts.controller,
            verifier=parts.verifier,
            noise=noise,
            params=self.params,
            max_tokens=length,
        )
        tokens: Tokens = ()
        for event in decode(self.script.target, [request]):
            if isinstance(event, Round):
                counts.add(event)
                tokens += event.tokens
        return tokens
