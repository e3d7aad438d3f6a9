"""What the benchmark scripts share: prompts, times, the environment, writing JSON."""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.environment import environment

CATEGORIES = ["coding", "math_reasoning", "summarization", "translation", "qa", "writing"]


@dataclass(frozen=True)
class Question:
    """One prompt."""

    number: int
    category: str
    text: str

    @property
    def messages(self) -> list[dict[str, str]]:
        """The prompt as a chat."""
        return [{"role": "user", "content": self.text}]


def questions(path: Path, categories: Sequence[str], per_category: int) -> list[Question]:
    """The first questions of each category, in turn, from a file in Spec-Bench's format."""
    found: dict[str, list[Question]] = {name: [] for name in categories}
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        if len(found.get(item["category"], range(per_category))) < per_category:
            found[item["category"]].append(
                Question(item["question_id"], item["category"], item["turns"][0])
            )
    few = {name: len(group) for name, group in found.items() if len(group) < per_category}
    if few:
        raise SystemExit(
            f"{path}: expected {per_category} prompts of each category; found "
            + ", ".join(f"{count} of {name}" for name, count in few.items())
        )
    return [question for group in zip(*found.values(), strict=True) for question in group]


ENVIRONMENT = {
    **environment(),
    "command": " ".join(["python", "benchmarks/" + Path(sys.argv[0]).name, *sys.argv[1:]]),
}
"""As it was when the script started: the code that runs is the code of that commit."""


def write(path: Path | None, result: dict[str, Any]) -> None:
    """Write a result with its environment; None only measures."""
    if path is not None:
        path.write_text(json.dumps({"environment": ENVIRONMENT, **result}, indent=1) + "\n")


def median_ms(run: Callable[[], object], repeats: int) -> float:
    """The median time of `run` in milliseconds, after one warm-up."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)
