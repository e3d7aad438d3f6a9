"""The result of a benchmark: by method, by category, by prompt; and its JSON form."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.testing.differences import Parting
from paceline.workbench.bench.predicted import Prices, predicted_speedup, prices_of
from paceline.workbench.bench.runs import Run
from paceline.workbench.bench.statistics import (
    CONFIDENCE,
    Noise,
    PromptRatio,
    Ratio,
    by_prompt,
    fastest,
    noise_of,
    prompt_ratios,
    share_of_time,
    speedup,
)
from paceline.workbench.workload import Item
from paceline.workbench.workload.methods import Method

SCHEMA = "paceline.bench/1"


@dataclass(frozen=True)
class Difference:
    """An answer whose tokens are not those of plain decoding.

    Args:
        item, method: the places of its prompt and method; 0 is plain decoding against itself.
        position: of the first token that differs.
        parting: why, if the two diverged again when they were examined; else None.
        looked: whether they were examined.
    """

    item: int
    method: int
    position: int
    parting: Parting | None = None
    looked: bool = True

    @property
    def label(self) -> str:
        """A "tie", a "fault", or why it is neither."""
        if not self.looked:
            return "not looked into"
        return "not repeated" if self.parting is None else self.parting.label


@dataclass(frozen=True)
class Group:
    """The figures of some of the runs of one method.

    Args:
        ratio: the speed-up of decoding; None if nothing was generated.
        total_ratio: the same with the prefill.
        predicted: the speed-up by the cost model.
        tokens_per_second: the tokens of all answers divided by the time of all decoding.
        counts: acceptance by position.
        num_draft_tokens: all drafted nodes.
        parts_s: the time by part.
        num_runs, num_tokens: the numbers of runs and of tokens.
        peak_bytes: the peak memory.
    """

    ratio: Ratio | None
    total_ratio: Ratio | None
    predicted: float | None
    tokens_per_second: float | None
    counts: AcceptanceCounts
    num_draft_tokens: int
    parts_s: Mapping[str, float]
    num_runs: int
    num_tokens: int
    peak_bytes: int | None

    @property
    def mean_acceptance_length(self) -> float | None:
        """Tokens per round, including the correction or bonus."""
        return stats.mean_acceptance_length(self.counts)

    @property
    def draft_acceptance_rate(self) -> float | None:
        """Accepted over all drafted tokens, including those after a rejection."""
        drafted = self.num_draft_tokens
        return self.counts.num_accepted_tokens / drafted if drafted else None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; see docs/bench.md."""
        unconditional = stats.acceptance_rate_per_position(self.counts)
        conditional = stats.conditional_acceptance_rate_per_position(self.counts)
        return {
            "num_runs": self.num_runs,
            "num_tokens": self.num_tokens,
            "tokens_per_second": self.tokens_per_second,
            "speedup": ratio_json(self.ratio),
            "speedup_with_prefill": ratio_json(self.total_ratio),
            "predicted_speedup": self.predicted,
            "mean_acceptance_length": self.mean_acceptance_length,
            "draft_acceptance_rate": self.draft_acceptance_rate,
            "acceptance_rate": stats.acceptance_rate(self.counts),
            "acceptance_rate_per_position": None if unconditional is None else list(unconditional),
            "conditional_acceptance_rate_per_position": (
                None if conditional is None else list(conditional)
            ),
            "acceptance": self.counts.to_json(),
            "time_s": dict(self.parts_s),
            "peak_memory_bytes": self.peak_bytes,
        }


@dataclass(frozen=True)
class BenchResult:
    """All measurements, and the figures computed from them.

    Args:
        items: the prompts.
        methods: the first is plain decoding.
        runs: in order.
        differences: every answer that was not plain decoding's; None if tokens need not be the
            same, because they are sampled.
        interrupted: whether runs are missing because the user stopped.
        about: model, options and environment, for the report.
    """

    items: Sequence[Item]
    methods: Sequence[Method]
    runs: Sequence[Run]
    differences: Mapping[int, Sequence[Difference]]
    interrupted: bool = False
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def noise(self) -> Noise:
        """The noise, from plain decoding against itself."""
        return noise_of(self.runs)

    @cached_property
    def prices(self) -> Prices:
        """The median cost of each part."""
        return prices_of(self.runs)

    @property
    def categories(self) -> list[str]:
        """The categories of the prompts that were run, in order."""
        return list(dict.fromkeys(self.items[run.item].category for run in self.runs))

    @cached_property
    def _groups(self) -> dict[tuple[int, str | None], Group]:
        return {}

    def group(self, method: int, category: str | None = None) -> Group:
        """The figures of a method, on the prompts of one category or on all."""
        key = method, category
        if key not in self._groups:
            self._groups[key] = self._group(method, category)
        return self._groups[key]

    def _group(self, method: int, category: str | None) -> Group:
        within = [
            run
            for run in self.runs
            if category is None or self.items[run.item].category == category
        ]
        own = [run for run in within if run.method == method]
        counts = sum((run.counts for run in own), AcceptanceCounts())
        seconds = sum(run.decode_s for run in own)
        tokens = sum(len(run.tokens) for run in own)
        peaks = [run.peak_bytes for run in own if run.peak_bytes is not None]
        return Group(
            ratio=speedup(within, method, self.noise),
            total_ratio=speedup(within, method, self.noise, with_prefill=True),
            predicted=predicted_speedup(own, method, self.prices),
            tokens_per_second=tokens / seconds if tokens else None,
            counts=counts,
            num_draft_tokens=sum(item.num_draft_tokens for run in own for item in run.rounds),
            parts_s=share_of_time(own),
            num_runs=len(own),
            num_tokens=tokens,
            peak_bytes=max(peaks, default=None),
        )

    @cached_property
    def fastest(self) -> list[int]:
        """The methods that may be the fastest; see `statistics.fastest`."""
        return fastest(self.runs, len(self.methods), self.noise)

    def prompt_ratios(self, method: int) -> list[PromptRatio]:
        """The speed-up of a method, prompt by prompt, with the range that noise alone explains."""
        return prompt_ratios(self.runs, method, self.noise)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the schema is in docs/bench.md."""
        noise = self.noise
        return {
            "schema": SCHEMA,
            **self.about,
            "interrupted": self.interrupted,
            "confidence": CONFIDENCE,
            "noise": {
                "relative_deviation": noise.deviation,
                "num_pairs": noise.num_pairs,
                "second_over_first": noise.ratio,
            },
            "fastest": [self.methods[place].name for place in self.fastest],
            "methods": [
                {
                    **method.to_json(),
                    "acceptance": self.group(place).counts.to_json(),
                    "same_tokens": self._same(place),
                    "overall": self.group(place).to_json(),
                    "categories": {
                        name: self.group(place, name).to_json() for name in self.categories
                    },
                }
                for place, method in enumerate(self.methods)
            ],
            "prompts": self._prompts(),
        }

    def _same(self, method: int) -> dict[str, Any] | None:
        """Whether the tokens were plain decoding's; None if they need not be."""
        if method not in self.differences:
            return None
        found = self.differences[method]
        compared = len({run.item for run in self.runs if run.method == method})
        return {
            "num_prompts": compared,
            "num_different": len(found),
            "differences": [
                {
                    "id": self.items[item.item].id,
                    "position": item.position,
                    "label": item.label,
                    "gap": None if item.parting is None else _finite(item.parting.gap),
                    "pass_difference": None
                    if item.parting is None
                    else item.parting.pass_difference,
                }
                for item in found
            ],
        }

    def _prompts(self) -> list[dict[str, Any]]:
        groups = by_prompt(self.runs)
        ratios = {
            (place, ratio.item): ratio
            for place in range(len(self.methods))
            for ratio in self.prompt_ratios(place)
        }
        found = []
        for place in dict.fromkeys(run.item for run in self.runs):
            item = self.items[place]
            methods = {}
            for number, method in enumerate(self.methods):
                runs = groups.get((place, number), [])
                if not runs:
                    continue
                ratio = ratios.get((number, place))
                methods[method.name] = {
                    "num_tokens": len(runs[0].tokens),
                    "finish_reason": runs[0].finish_reason,
                    "tokens_per_second": [run.tokens_per_second for run in runs],
                    "prefill_s": [run.prefill_s for run in runs],
                    "speedup": None if ratio is None else ratio.value,
                    "speedup_low": None if ratio is None else ratio.low,
                    "speedup_high": None if ratio is None else ratio.high,
                    "slower_beyond_noise": None if ratio is None else ratio.is_slower,
                    "acceptance": sum((run.counts for run in runs), AcceptanceCounts()).to_json(),
                    "drafts": [run.marks for run in runs],
                }
            first = next(run for run in self.runs if run.item == place)
            found.append(
                {
                    "id": item.id,
                    "category": item.category,
                    "num_prompt_tokens": first.num_prompt_tokens,
                    "methods": methods,
                }
            )
        return found


def ratio_json(ratio: Ratio | None) -> dict[str, Any] | None:
    """A speed-up as plain JSON values."""
    if ratio is None:
        return None
    return {
        "value": ratio.value,
        "low": ratio.low,
        "high": ratio.high,
        "num_prompts": ratio.num_prompts,
        "possible": ratio.possible if math.isfinite(ratio.possible) else None,
    }


def _finite(value: float) -> float | None:
    return value if value < float("inf") else None
