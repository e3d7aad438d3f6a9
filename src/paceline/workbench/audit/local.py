"""The audit of a Paceline configuration: exact distribution, greedy equality, sampling, seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from paceline.checks import require_int
from paceline.core.sampling import SamplingParams
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel
from paceline.generate.results import sampling_of
from paceline.workbench.audit.answers import NamedPrompt, parts_of
from paceline.workbench.audit.greedy import check_greedy
from paceline.workbench.audit.laws import check_law
from paceline.workbench.audit.progress import Progress, silent
from paceline.workbench.audit.sampling import SamplingSettings, check_sampling
from paceline.workbench.audit.seeds import check_seeds
from paceline.workbench.audit.verdicts import Audit, Finding

_SAMPLING = SamplingParams.__dataclass_fields__.keys()


@dataclass(frozen=True, slots=True)
class LocalSettings:
    """How much an audit checks.

    Args:
        max_tokens: the maximum length of greedy answers, and of those with a seed.
        seed: of the answers that are made twice.
        sampling: the settings of the two-sample tests.
    """

    max_tokens: int = 64
    seed: int = 0
    sampling: SamplingSettings = field(default_factory=SamplingSettings)

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, low=1)
        require_int("seed", self.seed, low=0, high=2**32)


def audit_model(
    model: LanguageModel,
    prompts: Sequence[NamedPrompt],
    options: Mapping[str, Any],
    settings: LocalSettings | None = None,
    *,
    progress: Progress = silent,
) -> Audit:
    """Audit a configuration of Paceline on the user's prompts.

    Args:
        model: the target.
        prompts: with distinct names.
        options: of `LanguageModel.generate`: drafter, draft model, rule, controller, sampling.
            At temperature 0 only the greedy checks run.
        settings: None means the defaults.
        progress: called for each step.

    Raises:
        InvalidInput: no prompt, or invalid options.
    """
    start = perf_counter()
    settings = settings or LocalSettings()
    if not prompts:
        raise InvalidInput("there is no prompt; give at least one")
    params = model.sampling(**{name: options[name] for name in _SAMPLING if name in options})
    parts = parts_of(model, prompts[0].prompt, options)
    progress(0, 1, "exact distribution on scripted targets")
    greedy = SamplingParams(**{**{n: getattr(params, n) for n in _SAMPLING}, "temperature": 0.0})
    findings: list[Finding] = [
        check_law(parts, [greedy] if params.is_greedy else [greedy, params]),
    ]
    progress(1, 1, "exact distribution on scripted targets")
    findings.append(
        check_greedy(model, prompts, options, max_tokens=settings.max_tokens, progress=progress)
    )
    if not params.is_greedy:
        findings.append(
            check_sampling(model, prompts, options, settings.sampling, progress=progress)
        )
        findings.append(
            check_seeds(
                model,
                prompts,
                options,
                max_tokens=settings.max_tokens,
                seed=settings.seed,
                progress=progress,
            )
        )
    subject = {
        "model": model.name,
        "drafter": parts.drafter.name,
        "verifier": parts.verifier.name,
        "exact": parts.verifier.exact,
        "controller": parts.controller.name,
        "num_draft_tokens": options.get("num_draft_tokens"),
        "invariant": model.target.info.invariant,
        "sampling": sampling_of(params),
        "prompts": len(prompts),
    }
    return Audit(subject, tuple(findings), perf_counter() - start)
