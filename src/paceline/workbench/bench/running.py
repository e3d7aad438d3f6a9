"""Make the runs: warm up, then alternate, and examine every answer that differs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import torch

from paceline.core.events import Finished, Prefilled, Round
from paceline.engine.loop import decode
from paceline.errors import InvalidInput
from paceline.generate.api import LanguageModel, Prompt
from paceline.testing.differences import Parting, first_difference
from paceline.workbench.bench.runs import RoundFacts, Run
from paceline.workbench.bench.schedule import Step, schedule

WARM_UP_TOKENS = 16


@dataclass(frozen=True)
class Setting:
    """What is run.

    Args:
        model: the target.
        prompts: as `LanguageModel.generate` takes them.
        methods: the options of each method; the first is plain decoding.
        common: the options of all methods: sampling, length.
        seed: of the first prompt; each prompt has its own, the same for every method.
        drafting: the settings for drafters that come with each prompt; may be empty.
        takes: the names of the settings that each method takes from prompts.
    """

    model: LanguageModel
    prompts: Sequence[Prompt]
    methods: Sequence[Mapping[str, Any]]
    common: Mapping[str, Any]
    seed: int = 0
    drafting: Sequence[Mapping[str, Any]] = ()
    takes: Sequence[Sequence[str]] = ()

    def options(self, step: Step, **changes: Any) -> dict[str, Any]:
        """The options of one run."""
        seed = {"seed": self.seed + step.item}
        found = {**self.common, **seed, **self.methods[step.method], **changes}
        brought = self.drafting[step.item] if self.drafting else {}
        taken = {name: brought[name] for name in self.taken(step.method) if name in brought}
        if taken:
            found["drafter_options"] = {**taken, **found.get("drafter_options", {})}
        return found

    def taken(self, method: int) -> Sequence[str]:
        """The names of the settings that a method takes from prompts."""
        return self.takes[method] if self.takes else ()


def check(setting: Setting, sources: Sequence[str]) -> None:
    """Find what cannot be run, such as a prompt that is too long, before anything is run.

    Args:
        setting: what is to be run.
        sources: where each prompt comes from, for messages.

    Raises:
        PacelineError: as in `LanguageModel.generate`.
    """
    for method in range(len(setting.methods)):
        if not setting.taken(method):
            setting.model.prepare(setting.prompts[:1], **setting.options(Step(0, method)))
    for item, (prompt, source) in enumerate(zip(setting.prompts, sources, strict=True)):
        try:
            for method in range(len(setting.methods)):
                if method == 0 or setting.taken(method):
                    setting.model.prepare([prompt], **setting.options(Step(item, method)))
        except InvalidInput as error:
            raise InvalidInput(f"{source}: {error}") from error


def warm_up(setting: Setting) -> None:
    """A short answer by each method: the first pass of a shape is slower than those after."""
    most = setting.common.get("max_tokens") or WARM_UP_TOKENS
    for method in range(len(setting.methods)):
        run(setting, Step(0, method), max_tokens=min(most, WARM_UP_TOKENS))


def runs(setting: Setting, repeats: int) -> Iterator[Run]:
    """Every timed run, in the order of `schedule`."""
    for step in schedule(len(setting.prompts), len(setting.methods), repeats):
        yield run(setting, step)


def run(setting: Setting, step: Step, **changes: Any) -> Run:
    """One answer, timed."""
    prompt = setting.prompts[step.item]
    (job,) = setting.model.prepare([prompt], **setting.options(step, **changes))
    memory = _Memory(getattr(setting.model.decoder, "device", None))
    tokens: list[int] = []
    rounds: list[RoundFacts] = []
    finish, prefill_s = "", 0.0
    start = begun = end = perf_counter()
    with closing(decode(setting.model.target, [job.request])) as events:
        for event in events:
            end = perf_counter()
            if isinstance(event, Prefilled):
                prefill_s, begun = end - start, end
            elif isinstance(event, Round):
                tokens += event.tokens
                rounds.append(_facts(event))
                memory.look()
                begun += perf_counter() - end  # measuring memory is not decoding
                end = perf_counter()
            elif isinstance(event, Finished):
                finish = event.reason.value
    return Run(
        item=step.item,
        method=step.method,
        tokens=tuple(tokens),
        finish_reason=finish,
        num_prompt_tokens=len(job.request.prompt),
        rounds=tuple(rounds),
        prefill_s=prefill_s,
        decode_s=end - begun,
        peak_bytes=memory.peak,
    )


def parting(setting: Setting, item: int, method: int, position: int) -> Parting | None:
    """Why an answer diverges from plain decoding at `position`; None if it does not do so again.

    Both are run again up to there, keeping the logits after each token.
    """
    plain, plain_logits = _with_logits(setting, Step(item, 0), position)
    other, other_logits = _with_logits(setting, Step(item, method), position)
    dtype = getattr(setting.model.decoder, "dtype", None)
    return first_difference(
        plain,
        plain_logits,
        other,
        other_logits,
        dtype=dtype if isinstance(dtype, torch.dtype) else torch.float32,
    )


def _with_logits(
    setting: Setting, step: Step, position: int
) -> tuple[list[int], list[torch.Tensor]]:
    # The same limit as in the timed run, so that the same drafts are made.
    (job,) = setting.model.prepare([setting.prompts[step.item]], **setting.options(step))
    tokens: list[int] = []
    logits: list[torch.Tensor] = []
    request = replace(job.request, keep_logits=True)
    with closing(decode(setting.model.target, [request])) as events:
        for event in events:
            if isinstance(event, Round):
                assert event.logits is not None
                tokens += event.tokens
                logits += event.logits.unbind()
                if len(tokens) > position:
                    break
    return tokens[: position + 1], logits[: position + 1]


def _facts(event: Round) -> RoundFacts:
    return RoundFacts(
        num_tokens=len(event.tokens),
        path_length=event.max_path_length,
        num_draft_tokens=event.num_draft_tokens,
        num_accepted_tokens=event.num_accepted_tokens,
        num_rows=event.num_rows,
        draft_s=event.draft_seconds,
        target_s=event.target_seconds / event.num_sequences,
        verify_s=event.verify_seconds,
        drafter=event.drafter,
    )


class _Memory:
    """The peak memory: of the accelerator if the model is on one, else of the process."""

    def __init__(self, device: torch.device | None) -> None:
        import psutil

        self.peak: int | None = None
        self._device = device if device is not None and device.type == "cuda" else None
        self._process = psutil.Process()
        if self._device is not None:
            torch.cuda.reset_peak_memory_stats(self._device)

    def look(self) -> None:
        """Read the memory now."""
        if self._device is not None:
            now = torch.cuda.max_memory_allocated(self._device)
        else:
            now = self._process.memory_info().rss
        self.peak = max(self.peak or 0, now)


def differing(runs: Sequence[Run]) -> dict[tuple[int, int], int]:
    """The first token, by (prompt, method), at which an answer differs from plain decoding.

    Plain decoding is compared with itself too. Equal answers are left out.
    """
    first: dict[int, Run] = {}
    for run in runs:
        if run.method == 0:
            first.setdefault(run.item, run)
    found: dict[tuple[int, int], int] = {}
    for run in runs:
        plain = first.get(run.item)
        if plain is None or run.tokens == plain.tokens:
            continue
        pairs = enumerate(zip(plain.tokens, run.tokens, strict=False))
        shorter = min(len(plain.tokens), len(run.tokens))
        position = next((place for place, (a, b) in pairs if a != b), shorter)
        found.setdefault((run.item, run.method), position)
    return found
