"""The result of a replay: acceptance by position and category, and predicted speed-ups."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from statistics import median
from typing import Any

from paceline.core.protocols import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.economics import stats
from paceline.economics.stats import AcceptanceCounts
from paceline.workbench.replay.costs import PassTimes, Predicted, predict, time_passes
from paceline.workbench.replay.drafts import Reader, Replayed
from paceline.workbench.replay.texts import RecordedText
from paceline.workbench.workload.methods import Method

SCHEMA = "paceline.replay/1"


@dataclass(frozen=True)
class Part:
    """The figures of one method on some texts.

    Args:
        counts: acceptance by position.
        num_draft_tokens: all drafted nodes.
        alpha: the mean over tokens of the sum of min(p, q); None if it is unknown.
        predicted: the predicted speed-up; None if nothing was timed.
    """

    counts: AcceptanceCounts
    num_draft_tokens: int
    alpha: float | None
    predicted: Predicted | None

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; see docs/replay.md."""
        counts = self.counts
        unconditional = stats.acceptance_rate_per_position(counts)
        conditional = stats.conditional_acceptance_rate_per_position(counts)
        drafted = self.num_draft_tokens
        return {
            "acceptance": counts.to_json(),
            "mean_acceptance_length": stats.mean_acceptance_length(counts),
            "draft_acceptance_rate": counts.num_accepted_tokens / drafted if drafted else None,
            "acceptance_rate": stats.acceptance_rate(counts),
            "acceptance_rate_per_position": None if unconditional is None else list(unconditional),
            "conditional_acceptance_rate_per_position": (
                None if conditional is None else list(conditional)
            ),
            "alpha": self.alpha,
            "predicted_speedup": None if self.predicted is None else self.predicted.value,
            "predicted_speedup_interval": None
            if self.predicted is None
            else [self.predicted.low, self.predicted.high],
        }


@dataclass(frozen=True)
class ReplayResult:
    """The result of a replay.

    Args:
        texts: the records.
        methods: in order.
        found: for each method one `Replayed` per text.
        lengths: the longest draft of each method.
        passes: timed passes of the target and steps of draft models; None if nothing was timed.
        about: model, options and environment, for the report.
    """

    texts: Sequence[RecordedText]
    methods: Sequence[Method]
    found: Sequence[Sequence[Replayed]]
    lengths: Sequence[int]
    passes: PassTimes | None
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def _parts(self) -> dict[tuple[int, str | None], Part]:
        return {}

    @cached_property
    def categories(self) -> list[str]:
        """The categories of the texts, in order."""
        return list(dict.fromkeys(text.category for text in self.texts))

    def _draft_s(self, method: int) -> Callable[[PassTimes, int], float]:
        """The time of a draft of a given length: draft model steps, or measured proposals."""
        proposing = _medians(self.found[method])

        def seconds(passes: PassTimes, length: int) -> float:
            if method in passes.steps:
                return length * passes.step(method)
            return proposing.get(length, 0.0)

        return seconds

    def draft_s(self, method: int) -> dict[int, float]:
        """The time of a draft of each length; empty if nothing was timed."""
        if self.passes is None:
            return {}
        seconds = self._draft_s(method)
        known = _medians(self.found[method])
        lengths = range(1, self.lengths[method] + 1) if method in self.passes.steps else known
        return {length: seconds(self.passes, length) for length in lengths}

    def part(self, method: int, category: str | None = None) -> Part:
        """The figures of a method on the texts of one category, or on all."""
        key = method, category
        if key not in self._parts:
            self._parts[key] = self._part(method, category)
        return self._parts[key]

    def _part(self, method: int, category: str | None) -> Part:
        own = [
            found
            for text, found in zip(self.texts, self.found[method], strict=True)
            if category is None or text.category == category
        ]
        counts = sum((item.counts for item in own), AcceptanceCounts())
        alpha = [value for item in own for value in item.alpha]
        predicted = None
        if self.passes is not None:
            texts = [item.counts for item in own]
            predicted = predict(texts, self.passes, self._draft_s(method))
        return Part(
            counts,
            sum(item.num_draft_tokens for item in own),
            sum(alpha) / len(alpha) if alpha else None,
            predicted,
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the schema is in docs/replay.md."""
        return {
            "schema": SCHEMA,
            **self.about,
            "num_texts": len(self.texts),
            "num_tokens": sum(len(text.answer) for text in self.texts),
            "target_pass_s": None
            if self.passes is None
            else {str(rows): seconds for rows, seconds in self.passes.medians.items()},
            "methods": [
                {
                    **method.to_json(),
                    "acceptance": self.part(place).counts.to_json(),
                    "draft_s": {str(k): seconds for k, seconds in self.draft_s(place).items()},
                    "overall": self.part(place).to_json(),
                    "categories": {
                        name: self.part(place, name).to_json() for name in self.categories
                    },
                }
                for place, method in enumerate(self.methods)
            ],
        }


def replay(
    reader: Reader,
    texts: Sequence[RecordedText],
    methods: Sequence[Method],
    drafters: Sequence[Drafter],
    default_length: int,
    step: Callable[[str], None],
    about: Mapping[str, Any],
    *,
    timed: bool,
) -> ReplayResult:
    """Replay every text with every method.

    Args:
        reader: how texts are read.
        texts: the records.
        methods, drafters: the methods, and the drafter of each.
        default_length: the draft length of methods that name none.
        step: called with a description of the next step.
        about: model, options and environment, for the report.
        timed: whether to time passes of the reader's target, to predict speed-ups.
    """
    lengths = [
        method.num_draft_tokens if isinstance(method.num_draft_tokens, int) else default_length
        for method in methods
    ]
    found: list[list[Replayed]] = []
    for method, drafter, length in zip(methods, drafters, lengths, strict=True):
        found.append([])
        for text in texts:
            step(f"{text.id}: {method.name}")
            found[-1].append(reader.replay(drafter, text, length))
    passes = None
    if timed and reader.target is not None:
        step("timing passes")
        context = max(texts, key=lambda text: len(text.tokens)).tokens[:512]
        models = {
            place: drafter.model
            for place, drafter in enumerate(drafters)
            if isinstance(drafter, ModelDrafter)
        }
        passes = time_passes(reader.target, models, context, max(lengths))
    return ReplayResult(texts, methods, found, lengths, passes, about)


def _medians(found: Sequence[Replayed]) -> dict[int, float]:
    times: dict[int, list[float]] = {}
    for item in found:
        for length, seconds in item.draft_s:
            times.setdefault(length, []).append(seconds)
    return {length: median(values) for length, values in sorted(times.items())}
