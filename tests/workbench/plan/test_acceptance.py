"""Which methods of a report a plan takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from paceline.workbench.plan.acceptance import read_acceptance


def method(name: str, length: int, num_draft_tokens: Any) -> dict[str, Any]:
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
    }


def test_the_longest_fixed_length_of_each_drafter(tmp_path: Path) -> None:
    methods = [
        method("ngram,k=2", 2, 2),
        method("ngram,k=auto", 7, None),
        method("ngram,k=5", 5, 5),
        method("model,k=auto", 6, "auto"),
    ]
    file = tmp_path / "bench.json"
    file.write_text(json.dumps({"methods": methods}))
    assert [item.name for item in read_acceptance(file)] == ["ngram,k=5", "model,k=auto"]
