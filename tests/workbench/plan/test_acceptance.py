"""What a plan takes from a report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from paceline.economics.stats import AcceptanceCounts
from paceline.workbench.plan.acceptance import MeasuredAcceptance, read_acceptance


def method(name: str, length: int, num_draft_tokens: Any, **more: Any) -> dict[str, Any]:
    counts = {
        "rounds": 9,
        "drafted": [9] * length,
        "tested": [9] * length,
        "accepted": [9] * length,
    }
    return {
        "name": name,
        "drafter": name.split(",")[0],
        "num_draft_tokens": num_draft_tokens,
        "settings": {},
        "acceptance": counts,
        **more,
    }


def read(folder: Path, methods: Sequence[Any], **more: Any) -> list[MeasuredAcceptance]:
    file = folder / "bench.json"
    file.write_text(json.dumps({"methods": methods, **more}))
    return read_acceptance(file)


def test_fixed_lengths_come_from_fixed_ones_alone(tmp_path: Path) -> None:
    """Of lengths between two measured ones, the nearest longer one tells."""
    overall = {
        "speedup": {"value": 2.0, "low": 1.8, "high": 2.3},
        "time_s": {"draft": 1.0, "target": 2.0, "verify": 0.5, "rest": 1.0, "prefill": 7.0},
    }
    methods = [
        method("ngram,k=2", 2, 2),
        method("ngram,k=auto", 7, None, overall=overall),
        method("ngram,k=5", 5, 5),
        method("model,k=auto", 6, "auto", overall=overall),
    ]
    ngram, model = read(tmp_path, methods)
    assert ngram.name == "ngram"
    assert {k: len(counts.drafted) for k, counts in ngram.by_length.items()} == {
        1: 2, 2: 2, 3: 5, 4: 5, 5: 5
    }  # fmt: skip
    assert model.by_length == {}
    (speed,) = model.adaptive
    assert (speed.speedup, speed.low, speed.tokens) == (2.0, 1.8, 7.0)
    assert (speed.seconds, speed.num_draft_tokens) == (0.5, 6.0)


def test_a_replay_is_fixed_also_where_no_length_was_given(tmp_path: Path) -> None:
    (found,) = read(tmp_path, [method("ngram", 5, None)], schema="paceline.replay/1")
    assert sorted(found.by_length) == [1, 2, 3, 4, 5]
    assert found.adaptive == ()


def test_marks_of_several_methods_are_joined(tmp_path: Path) -> None:
    """Where auto stopped, the method with k = 2 tested: at every place something is known."""
    methods = [method("ngram,k=auto", 2, "auto"), method("ngram,k=2", 2, 2)]
    prompts = [
        {
            "id": "1",
            "methods": {
                "ngram,k=auto": {"drafts": ["1+10--"]},
                "ngram,k=2": {"drafts": ["0110+0"]},
            },
        }
    ]
    (found,) = read(tmp_path, methods, prompts=prompts)
    # Joined: 1, 1, 1, 0, then nothing to draft, then 0.
    assert found.by_length[1] == AcceptanceCounts.from_rounds([(1, 1), (1, 1), (0, 0), (1, 0)])
    assert found.by_length[3] == AcceptanceCounts.from_rounds([(3, 3), (0, 0), (3, 0)])
    (sampled,) = read(tmp_path, methods, prompts=prompts, options={"temperature": 1.0})
    assert sorted(sampled.by_length) == [1, 2]
