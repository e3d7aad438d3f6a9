"""Sampled answers of planted faults and of right rules, through the engine, by tests alone.

The faults of `planted` are black boxes here: only their answers are seen.
"""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from paceline.core.events import Round
from paceline.core.sampling import SamplingParams
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.sampling.noise import SeededNoise
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.audit.sampling import SamplingSettings, check_sampling, compare_samples
from paceline.workbench.audit.scripts import Parts, Script, in_front_of, scripts
from paceline.workbench.audit.twosample import Stratum
from paceline.workbench.audit.verdicts import Verdict
from tests.workbench.audit.conftest import cycle, over
from tests.workbench.audit.planted import FAULTS, RIGHT

LENGTH = 8


def sampled(
    script: Script, parts: Parts, seeds: Sequence[int], prompt: tuple[int, ...]
) -> list[tuple[int, ...]]:
    """Answers of the engine, decoded together, one a seed."""
    staged = in_front_of(script, parts)
    found: list[tuple[int, ...]] = [()] * len(seeds)
    requests = [
        Request(
            prompt=prompt,
            drafter=staged.drafter,
            controller=staged.controller,
            verifier=staged.verifier,
            noise=SeededNoise(seed),
            params=SamplingParams(temperature=1.0),
            max_tokens=LENGTH,
        )
        for seed in seeds
    ]
    for event in decode(script.target, requests):
        if isinstance(event, Round):
            found[event.id] += event.tokens
    return found


def strata(parts: Parts, n: int, seed: int, on: Sequence[Script] | None = None) -> list[Stratum]:
    plain = parts._replace(drafter=NoDrafter(), verifier=TokenVerifier())
    places = [(script, prompt) for script in on or scripts() for prompt in script.prompts]
    found = []
    for number, (script, prompt) in enumerate(places):
        first = (seed * len(places) + number) * 2 * n
        sides = ((plain, range(first, first + n)), (parts, range(first + n, first + 2 * n)))
        answers = [sampled(script, side, seeds, prompt) for side, seeds in sides]
        found.append(Stratum(str(number), *answers))
    return found


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found_from_its_answers(name: str) -> None:
    """400 answers to each of five prompts on each side, seed 0, false-alarm rate .001."""
    finding = compare_samples(strata(FAULTS[name], 400, 0), SamplingSettings(samples=400))
    assert finding.verdict is Verdict.FAULT, finding.summary


@pytest.mark.statistical
@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_no_alarm_in_200_runs_of_a_right_rule(name: str) -> None:
    """200 audits, seeds 0 to 199, 20 answers to each of two prompts on each side,
    false-alarm rate .001 each.

    At that rate 200 audits give no alarm at all with probability .82, more than 2 with .0011.
    """
    alarms = 0
    for seed in range(200):
        settings = SamplingSettings(samples=20, seed=seed)
        finding = compare_samples(strata(RIGHT[name], 20, seed, scripts()[1:2]), settings)
        alarms += finding.verdict is Verdict.FAULT
    assert alarms == 0


def test_a_loaded_model_passes(prompts) -> None:
    settings = SamplingSettings(effect=0.3, max_tokens=6)
    options = {"temperature": 1.0, "drafter": "ngram", "num_draft_tokens": 3}
    finding = check_sampling(over(TableTarget(cycle(0.5))), prompts, options, settings)
    assert finding.verdict is Verdict.PASS
    assert finding.numbers["accepted"] > 0
    assert finding.numbers["answers_per_prompt_and_side"] == settings.num_samples(2)


def test_without_accepted_drafts_nothing_is_proved(prompts) -> None:
    settings = SamplingSettings(effect=0.4, max_tokens=4)
    options = {"temperature": 1.0, "drafter": "none", "num_draft_tokens": 0}
    finding = check_sampling(over(TableTarget(cycle(0.5))), prompts, options, settings)
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "nothing was tested" in finding.summary


def test_a_model_that_says_other_things_when_it_is_drafted_for_is_a_fault(prompts) -> None:
    class Shifted(TableTarget):
        def score(self, work):
            found = super().score(work)
            for item, scores in zip(work, found, strict=True):
                if len(item.draft):
                    scores.logits[1:, 0] += 1.0
            return found

    settings = SamplingSettings(effect=0.2, max_tokens=6)
    options = {"temperature": 1.0, "drafter": "ngram", "num_draft_tokens": 3}
    finding = check_sampling(over(Shifted(cycle(0.5))), prompts, options, settings)
    assert finding.verdict is Verdict.FAULT
