"""Acceptance by position from the reports of `paceline replay` and `paceline bench`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from paceline.economics.stats import AcceptanceCounts
from paceline.errors import InvalidInput
from paceline.workbench.workload.methods import DraftSource


@dataclass(frozen=True, slots=True)
class MeasuredAcceptance:
    """How far the drafts of one method were accepted.

    Args:
        name: of the method.
        drafter: under which the drafter is registered.
        counts: by position.
        draft: the draft model, and how it was loaded; None where there is none.
        settings: of the drafter.
        fixed: whether every round drafted up to the same length.
    """

    name: str
    drafter: str
    counts: AcceptanceCounts
    draft: DraftSource | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    fixed: bool = True


def read_acceptance(path: Path) -> list[MeasuredAcceptance]:
    """Every method of a report that drafted something, the longest drafts of each drafter.

    A method whose draft lengths a controller chose counts only where there is no other of its
    drafter: it drafts far where the text is easy, which says little of a fixed length.

    Raises:
        InvalidInput: the file is missing, or is no such report.
    """
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot read {path}: {error}") from None
    try:
        found = [_method(item) for item in report["methods"]]
    except (AttributeError, KeyError, TypeError) as error:
        raise InvalidInput(
            f"{path} is no report of `paceline replay` or `paceline bench` "
            f"({type(error).__name__}: {error}); write one with their --json"
        ) from None
    drafted = [item for item in found if item.counts.num_drafts]
    if not drafted:
        raise InvalidInput(f"no method in {path} drafted anything; replay or bench others")
    longest: dict[tuple[str, DraftSource | None, str], MeasuredAcceptance] = {}
    for item in drafted:
        key = item.drafter, item.draft, json.dumps(dict(item.settings), sort_keys=True)
        best = longest.setdefault(key, item)
        if _worth(item) > _worth(best):
            longest[key] = item
    return list(longest.values())


def _worth(item: MeasuredAcceptance) -> tuple[bool, int]:
    return item.fixed, len(item.counts.drafted)


def _method(item: Mapping[str, Any]) -> MeasuredAcceptance:
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
    return MeasuredAcceptance(
        name=item["name"],
        drafter=item["drafter"],
        counts=AcceptanceCounts.from_json(item["acceptance"]),
        draft=draft,
        settings=item.get("settings") or {},
        fixed=isinstance(item.get("num_draft_tokens", 0), int),
    )
