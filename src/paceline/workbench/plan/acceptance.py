"""Acceptance by draft length from the reports of `paceline replay` and `paceline bench`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.checks import reason_of
from paceline.economics.stats import AcceptanceCounts, mean_acceptance_length
from paceline.errors import InvalidInput
from paceline.workbench.plan.marks import counts_by_length, labels, merged
from paceline.workbench.workload.methods import USUAL_FORM, DraftSource, HeadForm

LONGEST = 16
"""The longest draft length to plan from answers whose draft lengths a controller chose."""


@dataclass(frozen=True, slots=True)
class MeasuredSpeed:
    """The measured speed of a method whose draft lengths a controller chose: it is not predicted.

    Args:
        name: the name of the method.
        speedup, low, high: over plain decoding, as it was measured.
        tokens: per round.
        seconds: of a round.
        num_draft_tokens: the mean length of its drafts.
    """

    name: str
    speedup: float
    low: float
    high: float
    tokens: float
    seconds: float
    num_draft_tokens: float


@dataclass(frozen=True, slots=True)
class MeasuredAcceptance:
    """How far the drafts of one drafter were accepted.

    Args:
        name: of the method, without a draft length.
        drafter: the name under which the drafter is registered.
        by_length: acceptance by position at each fixed draft length that is known.
        draft: the draft model, and how it was loaded; None without one.
        settings: of the drafter.
        adaptive: its measured speed with lengths chosen by a controller.
        head: how a draft head was loaded, if there was one and no draft model.
    """

    name: str
    drafter: str
    by_length: Mapping[int, AcceptanceCounts]
    draft: DraftSource | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    adaptive: Sequence[MeasuredSpeed] = ()
    head: HeadForm = USUAL_FORM


@dataclass(frozen=True, slots=True)
class _Entry:
    """One method of a report; `length` is None if a controller chose it."""

    name: str
    drafter: str
    draft: DraftSource | None
    settings: Mapping[str, Any]
    head: HeadForm
    length: int | None
    counts: AcceptanceCounts
    speed: MeasuredSpeed | None
    answers: Mapping[str, Sequence[str]]


def read_acceptance(path: Path) -> list[MeasuredAcceptance]:
    """Every drafter of a report that drafted something, with acceptance at all known lengths.

    Acceptance at a fixed length comes from methods with that length, and for other lengths from the
    marks along their answers (see `plan.marks`). If a controller chose the lengths, the drafts are
    a selected sample: they are long where the text was easy. For such a method the measured speed
    is used.

    Raises:
        InvalidInput: the file is missing, or is not such a report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot read {path}: {reason_of(error)}") from None
    try:
        found = [_entry(item, report) for item in report["methods"]]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInput(
            f"{path} is not a report of `paceline replay` or `paceline bench` "
            f"({type(error).__name__}: {error}); write one with their --json"
        ) from None
    drafted = [item for item in found if item.counts.num_drafts]
    if not drafted:
        raise InvalidInput(f"no method in {path} drafted anything; replay or bench others")
    groups: dict[tuple[str, DraftSource | None, str], list[_Entry]] = {}
    for item in drafted:
        settings = json.dumps([dict(item.settings), item.head], sort_keys=True)
        key = item.drafter, item.draft, settings
        groups.setdefault(key, []).append(item)
    return [_joined(group) for group in groups.values()]


def counts_of_fixed(lengths: Mapping[int, AcceptanceCounts]) -> dict[int, AcceptanceCounts]:
    """Acceptance at every length up to the longest, from the nearest measured one not below it."""
    return {
        k: lengths[min(length for length in lengths if length >= k)]
        for k in range(1, max(lengths, default=0) + 1)
    }


def _joined(group: Sequence[_Entry]) -> MeasuredAcceptance:
    first = group[0]
    fixed = {len(item.counts.drafted): item.counts for item in group if item.length is not None}
    answers = _answers(group)
    if answers:
        longest = max(LONGEST, *(item.length or 0 for item in group))
        by_length = {**counts_by_length(answers, longest), **fixed}
    else:
        by_length = counts_of_fixed(fixed)
    return MeasuredAcceptance(
        name=re.sub(r",k=[^,]*", "", first.name),
        drafter=first.drafter,
        by_length=dict(sorted(by_length.items())),
        draft=first.draft,
        settings=first.settings,
        adaptive=tuple(
            item.speed for item in group if item.length is None and item.speed is not None
        ),
        head=first.head,
    )


def _answers(group: Iterable[_Entry]) -> list[str]:
    """The labels of every answer; runs with the same tokens are merged."""
    by_answer: dict[tuple[str, int], list[str]] = {}
    for item in group:
        for key, runs in item.answers.items():
            for marks in runs:
                found = labels(marks, item.length)
                by_answer.setdefault((key, len(found)), []).append(found)
    return [merged(runs) for runs in by_answer.values()]


def _entry(item: Mapping[str, Any], report: Mapping[str, Any]) -> _Entry:
    texts = item["name"], item["drafter"], item.get("draft_model") or ""
    if not all(isinstance(text, str) for text in texts):
        raise TypeError("names of methods, drafters and draft models must be texts")
    if not isinstance(item.get("settings") or {}, Mapping):
        raise TypeError("settings must map names to values")
    head = item.get("draft_head_tokens")
    if head != "all" and not isinstance(head or 0, int):
        raise TypeError("draft_head_tokens must be a whole number, or all")
    draft = None
    if (name := item.get("draft_model")) is not None:
        draft = DraftSource(name, item.get("draft_storage"), head)
    counts = AcceptanceCounts.from_json(item["acceptance"])
    given = item.get("num_draft_tokens", 0)
    # A replay always has a fixed length, the default if none was given.
    replayed = report.get("schema") == "paceline.replay/1"
    fixed = replayed or isinstance(given, int)
    greedy = not report.get("options", {}).get("temperature", 0.0)
    return _Entry(
        name=item["name"],
        drafter=item["drafter"],
        draft=draft,
        settings=item.get("settings") or {},
        head=HeadForm(item.get("draft_storage"), head) if draft is None else USUAL_FORM,
        length=(given or len(counts.drafted)) if fixed else None,
        counts=counts,
        speed=None if fixed else _speed(item, counts),
        # Sampled runs of one prompt give different texts, so their marks cannot be merged.
        answers=_marks(item["name"], report) if greedy else {},
    )


def _marks(name: str, report: Mapping[str, Any]) -> dict[str, list[str]]:
    found = {}
    for prompt in report.get("prompts", ()):
        marks = prompt["methods"].get(name, {}).get("drafts")
        if marks is not None:
            if not all(isinstance(text, str) for text in marks):
                raise TypeError("drafts must be texts of marks")
            found[str(prompt["id"])] = list(marks)
    return found


def _speed(item: Mapping[str, Any], counts: AcceptanceCounts) -> MeasuredSpeed | None:
    overall = item.get("overall") or {}
    speedup, times = overall.get("speedup"), overall.get("time_s")
    tokens = mean_acceptance_length(counts)
    if speedup is None or times is None or tokens is None or not counts.num_drafts:
        return None
    value = float(speedup["value"])
    low, high = speedup.get("low"), speedup.get("high")
    seconds = sum(float(times[part]) for part in ("draft", "target", "verify", "rest"))
    return MeasuredSpeed(
        name=item["name"],
        speedup=value,
        low=value if low is None else float(low),
        high=value if high is None else float(high),
        tokens=tokens,
        seconds=seconds / counts.rounds,
        num_draft_tokens=counts.num_draft_tokens / counts.num_drafts,
    )
