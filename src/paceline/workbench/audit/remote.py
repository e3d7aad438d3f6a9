"""The audit of any OpenAI-compatible server against the same one without speculation."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Any, TypeVar

from paceline.checks import require_finite, require_int
from paceline.errors import EndpointError, InvalidInput
from paceline.workbench.audit.endpoint import Endpoint, Reply
from paceline.workbench.audit.progress import Progress, silent
from paceline.workbench.audit.remote_greedy import Answered, compare_greedy, compare_logprobs
from paceline.workbench.audit.sampling import CHECK as SAMPLING
from paceline.workbench.audit.sampling import SamplingSettings, compare_samples
from paceline.workbench.audit.texts import words
from paceline.workbench.audit.twosample import Stratum
from paceline.workbench.audit.verdicts import Audit, Finding, Verdict
from paceline.workbench.workload import Item

ITSELF = "baseline against itself"
SEEDS = "same seed, same text"

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class RemoteSettings:
    """How much an audit over HTTP requests.

    Args:
        max_tokens: the maximum length of a greedy answer.
        options: sampling options that are sent to both servers, such as `temperature`.
        sampling: the settings of the two-sample tests; a temperature of 0 leaves them out.
        concurrency: the number of sampled answers that are requested at once. Greedy ones are
            requested one by one, because answers that share a pass may round differently.
        tie_tolerance: the largest gap of a near-tie, in nats; None derives it from how much the
            log-probabilities of the two servers differ (see `texts`).
    """

    max_tokens: int = 64
    options: Mapping[str, Any] = field(default_factory=lambda: {"temperature": 1.0})
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    concurrency: int = 4
    tie_tolerance: float | None = None

    def __post_init__(self) -> None:
        require_int("max_tokens", self.max_tokens, low=1)
        require_int("concurrency", self.concurrency, low=1, high=1024)
        if self.tie_tolerance is not None:
            require_finite(self, "tie_tolerance", self.tie_tolerance, low=0.0)

    @property
    def samples(self) -> bool:
        """Whether anything is sampled."""
        return float(self.options.get("temperature", 1.0)) > 0


def audit_endpoints(
    candidate: Endpoint,
    baseline: Endpoint,
    items: Sequence[Item],
    settings: RemoteSettings | None = None,
    *,
    progress: Progress = silent,
) -> Audit:
    """Compare a server with the same one without speculation.

    Args:
        candidate: the server that speculates.
        baseline: the same model, served without speculation.
        items: the prompts; those with chat messages need the API `chat`.
        settings: None means the defaults.
        progress: called for each step.

    Raises:
        InvalidInput: no prompt, or one that the API does not take.
        EndpointError: a server cannot be reached, refuses, or answers with something else.
    """
    start = perf_counter()
    settings = settings or RemoteSettings()
    if not items:
        raise InvalidInput("there is no prompt; give at least one")
    prompts = [prompt_for(item, candidate.settings.api) for item in items]
    names = [item.id for item in items]
    candidate.identify()
    baseline.identify()
    answered = _greedy_answers(candidate, baseline, names, prompts, settings, progress)
    findings = [
        _itself(answered),
        compare_greedy(
            answered, max_tokens=settings.max_tokens, tie_tolerance=settings.tie_tolerance
        ),
        compare_logprobs(answered),
    ]
    if settings.samples:
        findings.append(_sampled(candidate, baseline, names, prompts, settings, progress))
        findings.append(_seeded(candidate, names, prompts, settings, progress))
    subject = {
        "url": candidate.url,
        "model": candidate.model,
        "baseline_url": baseline.url,
        "baseline_model": baseline.model,
        "api": candidate.settings.api,
        "options": dict(settings.options),
        "prompts": len(items),
    }
    return Audit(subject, tuple(findings), perf_counter() - start)


def prompt_for(item: Item, api: str) -> Any:
    """A prompt as the API takes it.

    Raises:
        InvalidInput: chat messages for completions.
    """
    if api == "chat":
        return item.as_prompt(chat=True)
    if not isinstance(item.prompt, str):
        raise InvalidInput(
            f"{item.source or item.id}: chat messages need the chat API; give --api chat"
        )
    return item.prompt


def _greedy_answers(
    candidate: Endpoint,
    baseline: Endpoint,
    names: Sequence[str],
    prompts: Sequence[Any],
    settings: RemoteSettings,
    progress: Progress,
) -> list[Answered]:
    """Send each prompt to both servers, twice to the baseline, then again with log-probabilities.

    The texts that are compared are requested without log-probabilities, because some servers do
    not speculate when they are requested.
    """
    greedy = {**settings.options, "temperature": 0.0, "seed": settings.sampling.seed}
    found = []
    for number, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        progress(number, len(prompts), "greedy answers")

        def ask(endpoint: Endpoint, *, logprobs: bool = False, prompt: Any = prompt) -> Reply:
            return endpoint.ask(
                prompt, max_tokens=settings.max_tokens, options=greedy, logprobs=logprobs
            )

        found.append(
            Answered(
                name,
                baseline=ask(baseline),
                again=ask(baseline),
                candidate=ask(candidate),
                baseline_scored=_with_scores(ask, baseline),
                candidate_scored=_with_scores(ask, candidate),
            )
        )
    progress(len(prompts), len(prompts), "greedy answers")
    return found


def _with_scores(ask: Callable[..., Reply], endpoint: Endpoint) -> Reply | None:
    """An answer with log-probabilities; None from a server that refuses to give them."""
    try:
        reply = ask(endpoint, logprobs=True)
    except EndpointError:
        return None  # it has just answered the same request without them
    return reply if reply.scores else None


def _itself(answered: Sequence[Answered]) -> Finding:
    """Whether the baseline gives the same greedy answer twice."""
    other = [item.name for item in answered if item.baseline.text != item.again.text]
    summary = (
        f"The baseline gave the same greedy answer twice to all {len(answered)} prompts."
        if not other
        else f"The baseline itself is not deterministic: it answered {len(other)} of "
        f"{len(answered)} prompts differently the second time (first: prompt {other[0]})."
    )
    numbers = {"answers": len(answered), "differing": len(other)}
    return Finding(ITSELF, None, summary, numbers, tuple({"prompt": name} for name in other))


def _sampled(
    candidate: Endpoint,
    baseline: Endpoint,
    names: Sequence[str],
    prompts: Sequence[Any],
    settings: RemoteSettings,
    progress: Progress,
) -> Finding:
    """Two-sample tests of the two halves of the baseline's answers, then of both servers'."""
    sampling = settings.sampling
    n = sampling.num_samples(len(prompts))
    sides = (baseline, candidate)
    jobs = [
        (number, side, index)
        for number in range(len(prompts))
        for index in range(n)
        for side in range(2)
    ]

    def sample(job: tuple[int, int, int]) -> tuple[str, ...]:
        number, side, index = job
        seed = sampling.seed + (number * n + index) * 2 + side
        reply = sides[side].ask(
            prompts[number],
            max_tokens=sampling.max_tokens,
            options={**settings.options, "seed": seed},
        )
        return words(reply.text)

    drawn: dict[tuple[int, int], list[tuple[str, ...]]] = {}
    for (number, side, _), units in zip(
        jobs, _in_threads(sample, jobs, settings.concurrency, progress), strict=True
    ):
        drawn.setdefault((number, side), []).append(units)
    strata = [Stratum(name, drawn[i, 0], drawn[i, 1]) for i, name in enumerate(names)]
    finding = compare_samples(strata, sampling)
    halves = [Stratum(s.name, s.plain[: n // 2], s.plain[n // 2 :]) for s in strata if n > 1]
    if not halves:
        return finding
    itself = compare_samples(halves, replace(sampling, samples=n // 2))
    least = min(float(row["adjusted_p_value"]) for row in itself.evidence)
    numbers = {**finding.numbers, "baseline_halves_least_adjusted_p_value": least}
    if itself.verdict is Verdict.FAULT:
        return replace(
            finding,
            verdict=Verdict.INCONCLUSIVE,
            numbers=numbers,
            summary="The baseline's own answers are not draws from one distribution: its first and "
            f"second half differ (corrected p-value {least:.2g}), so nothing can be said of the "
            f"other server. ({finding.summary})",
        )
    alike = [s.name for s in strata if len(set(s.plain)) == 1 and n > 1]
    if len(alike) == len(strata):
        return replace(
            finding,
            verdict=Verdict.INCONCLUSIVE,
            numbers=numbers,
            summary=f"The baseline gave the same answer {n} times to every prompt: it does "
            "not sample, whatever the temperature.",
        )
    return replace(finding, numbers=numbers)


def _seeded(
    candidate: Endpoint,
    names: Sequence[str],
    prompts: Sequence[Any],
    settings: RemoteSettings,
    progress: Progress,
) -> Finding:
    """Whether a seed gives the same text again. It has no verdict: servers do not promise it."""
    rows = []
    for number, (name, prompt) in enumerate(zip(names, prompts, strict=True)):
        progress(number, len(prompts), SEEDS)
        options = {**settings.options, "seed": settings.sampling.seed + number}
        one, two = (
            candidate.ask(prompt, max_tokens=settings.max_tokens, options=options).text
            for _ in range(2)
        )
        rows.append({"prompt": name, "seed": options["seed"], "same": one == two})
    progress(len(prompts), len(prompts), SEEDS)
    same = sum(bool(row["same"]) for row in rows)
    summary = f"{same} of {len(rows)} answers were the same again with the same seed"
    note = "no verdict: not every server promises it"
    return Finding(SEEDS, None, f"{summary} ({note}).", {"same": same}, tuple(rows))


def _in_threads(
    call: Callable[[T], R], jobs: Sequence[T], concurrency: int, progress: Progress
) -> list[R]:
    """Call `run` for each job, at most `concurrency` at once; the first error cancels the rest."""
    done, lock = 0, threading.Lock()

    def counted(job: T) -> R:
        nonlocal done
        result = call(job)
        with lock:
            done += 1
            progress(done, len(jobs), SAMPLING)
        return result

    progress(0, len(jobs), SAMPLING)
    with ThreadPoolExecutor(concurrency) as pool:
        futures = [pool.submit(counted, job) for job in jobs]
        try:
            return [future.result() for future in futures]
        except BaseException:
            _cancel(futures)
            raise


def _cancel(futures: Iterable[Any]) -> None:
    for future in futures:
        future.cancel()
