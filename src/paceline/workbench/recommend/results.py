"""The result: the method, its gain, its settings, and the standings of all methods."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paceline.generate.settings import settings_json
from paceline.workbench.bench.results import ratio_json
from paceline.workbench.bench.statistics import Ratio, noise_of, speedup
from paceline.workbench.recommend.measure import PLAIN, Measured
from paceline.workbench.workload.methods import Method

SCHEMA = "paceline.recommend/1"

SMALLEST_GAIN = 1.02
"""A gain below this is not worth changing a setting."""

OVERRUN = 1.2
"""More than this share of the budget is more than the end of an answer that had begun."""


@dataclass(frozen=True)
class Standing:
    """The result of one method in the race.

    Args:
        place: its index among all methods.
        num_prompts: the number of prompts that it answered.
        against_best: its speed divided by that of the fastest method, on the prompts of both.
        tokens_a_round: over all of its answers.
        left: whether it was dropped before the end.
    """

    place: int
    num_prompts: int
    against_best: float
    tokens_a_round: float
    left: bool


@dataclass(frozen=True)
class Recommendation:
    """The result.

    Args:
        methods: all methods to try; the first is plain decoding.
        measured: the measurements of the race and the check.
        refused: the names of methods that this model does not allow, with the reasons.
        about: model, prompts, options and environment.
    """

    methods: Sequence[Method]
    measured: Measured
    refused: Mapping[str, str] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def gain(self) -> Ratio | None:
        """The winner's gain for whole answers, prefill included; None if it was not checked."""
        runs = self.measured.checks
        return speedup(runs, 1, noise_of(runs), with_prefill=True)

    @cached_property
    def decoding_gain(self) -> Ratio | None:
        """The same for decoding alone, as in the first column of `paceline bench`."""
        runs = self.measured.checks
        return speedup(runs, 1, noise_of(runs))

    @property
    def is_possible(self) -> bool:
        """Whether the tokens per round allow the measured gain; otherwise it was noise."""
        found = self.decoding_gain
        return found is None or found.is_possible

    @property
    def overrun(self) -> tuple[float, float] | None:
        """The seconds that it took and the budget, if it was clearly more."""
        seconds, budget = self.about.get("seconds"), self.about.get("options", {}).get("budget")
        if seconds is None or budget is None or seconds <= OVERRUN * budget:
            return None
        return seconds, budget

    @property
    def chosen(self) -> int:
        """The index of the method to use: the winner if it gains, else plain decoding."""
        gain = self.gain
        gains = gain is None or gain.value >= SMALLEST_GAIN
        return self.measured.winner if gains else PLAIN

    @property
    def method(self) -> Method:
        """The method to use."""
        return self.methods[self.chosen]

    @cached_property
    def standings(self) -> list[Standing]:
        """All methods: those that stayed longest first, and among these the fastest first."""
        race = self.measured.race
        found = []
        for place in race.scores:
            runs = [entry.run for entry in self.measured.entries if entry.arm == place]
            rounds = sum(len(run.rounds) for run in runs)
            tokens = sum(len(run.tokens) for run in runs)
            found.append(
                Standing(
                    place,
                    len(race.scores[place]),
                    math.exp(-race.deficit(place)),
                    tokens / rounds if rounds else 1.0,
                    place in race.left_after,
                )
            )
        return sorted(found, key=lambda one: (-one.num_prompts, -one.against_best))

    def settings(self) -> dict[str, Any]:
        """The contents of a settings file; see `generate.settings`."""
        measured: dict[str, Any] = {
            "speedup": ratio_json(self.decoding_gain if self.chosen else None),
            "speedup_of_whole_answers": ratio_json(self.gain if self.chosen else None),
            "prompts_apart_from_the_choice": self.measured.fresh,
            **{
                name: self.about.get(name)
                for name in ("prompts_file", "options", "environment")
                if name in self.about
            },
        }
        return settings_json(str(self.about.get("model")), drafting_of(self.method), measured)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values; the schema is in docs/recommend.md."""
        measured = self.measured
        return {
            "schema": SCHEMA,
            **self.about,
            "interrupted": measured.interrupted,
            "checks_missing": measured.checks_missing,
            "recommended": self.method.name if self.is_possible else None,
            "settings": self.settings() if self.is_possible else None,
            "speedup": ratio_json(self.decoding_gain),
            "speedup_with_prefill": ratio_json(self.gain),
            "prompts_apart_from_the_choice": measured.fresh,
            "methods": [
                {
                    **self.methods[one.place].to_json(),
                    "num_prompts": one.num_prompts,
                    "against_best": one.against_best,
                    "tokens_a_round": one.tokens_a_round,
                    "left": one.left,
                }
                for one in self.standings
            ],
            "left_out": [self.methods[place].name for place in measured.left_out],
            "refused": dict(self.refused),
        }


def drafting_of(method: Method) -> dict[str, Any]:
    """A method as options of `generate`, for a file, with the draft model by its name.

    Example:
        >>> drafting_of(Method(("ngram",), 5))["num_draft_tokens"]
        5
    """
    draft = method.draft
    return {
        "drafter": method.drafter,
        "drafter_options": dict(method.settings),
        "num_draft_tokens": method.num_draft_tokens,
        "verify": method.verify,
        "draft_model": None if draft is None else draft.name,
        **method.form,
    }
