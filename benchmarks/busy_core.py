"""What `auto` does where another process takes one of the cores.

    python benchmarks/busy_core.py --prompts question.jsonl --json busy_core.json

One prompt is answered again and again, on the machine as it is and with an endless loop pinned to
one core. Answers that give way, as by default, take turns with answers in all threads
(`THREADS.gives_way = False`). The claims: with the loop, the mean acceptance length of the answers
that give way spreads (from the least to the most) by at most a quarter of its mean; without it,
they are as fast as those in all threads.

`question.jsonl` is in Spec-Bench's format (`category`, `turns`). Greedy, batch 1; answers do not
end before their length.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from _common import questions, write
from rich.console import Console
from rich.table import Table

import paceline
from paceline.engine.threads import THREADS

LOOP = "import os, sys; os.sched_setaffinity(0, {int(sys.argv[1])})\nwhile True: pass"
WARM_UP = 16
"""Tokens of an answer that is not counted."""


@dataclass(frozen=True)
class Answer:
    """One answer.

    Args:
        loop: whether the endless loop ran.
        gives_way: whether fewer threads were used where cores were taken.
        acceptance: its mean acceptance length.
        tokens_per_second: from the end of the prompt on.
        taken: the cores that were left to others at its end.
    """

    loop: bool
    gives_way: bool
    acceptance: float
    tokens_per_second: float
    taken: int


@contextmanager
def taken(core: int) -> Iterator[None]:
    """An endless loop on one core."""
    loop = subprocess.Popen([sys.executable, "-c", LOOP, str(core)])
    try:
        yield
    finally:
        loop.kill()
        loop.wait()


def answers(
    model: Any, options: dict[str, Any], text: str, loop: bool, repeats: int, fixed: int
) -> list[Answer]:
    """Of the answers that give way, the first `fixed` are each followed by one that does not."""
    found = []
    for repeat in range(repeats):
        for gives_way in (True, False) if repeat < fixed else (True,):
            THREADS.gives_way = gives_way
            one = model.generate([{"role": "user", "content": text}], **options)
            acceptance = one.spec["mean_acceptance_length"]
            found.append(Answer(loop, gives_way, acceptance, one.tokens_per_second, THREADS.taken))
    return found


def summary(found: list[Answer]) -> list[dict[str, Any]]:
    """A row for each kind of answers."""
    rows = []
    for loop in (False, True):
        for gives_way in (False, True):
            own = [one for one in found if (one.loop, one.gives_way) == (loop, gives_way)]
            if not own:
                continue
            lengths = [one.acceptance for one in own]
            rows.append(
                {
                    "loop": loop,
                    "gives_way": gives_way,
                    "answers": len(own),
                    "acceptance": statistics.mean(lengths),
                    "spread": (max(lengths) - min(lengths)) / statistics.mean(lengths),
                    "tokens_per_second": statistics.median(one.tokens_per_second for one in own),
                }
            )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--category", default="coding")
    parser.add_argument("--place", type=int, default=4, help="which prompt of the category")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--fixed", type=int, default=4, help="answers that do not give way")
    parser.add_argument("--core", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()

    question = questions(args.prompts, [args.category], args.place)[-1]
    model = paceline.load(args.target)
    options = {
        "draft_model": paceline.load_draft(args.draft),
        "max_tokens": args.tokens,
        "ignore_eos": True,
        "temperature": 0,
    }
    model.generate(question.text, **{**options, "max_tokens": WARM_UP})
    found = answers(model, options, question.text, False, args.repeats, args.fixed)
    with taken(args.core):
        found += answers(model, options, question.text, True, args.repeats, args.fixed)

    rows = summary(found)
    table = Table("loop on a core", "gives way", "answers", "acceptance", "spread", "tokens/s")
    for row in rows:
        table.add_row(
            "yes" if row["loop"] else "no",
            "yes" if row["gives_way"] else "no",
            str(row["answers"]),
            f"{row['acceptance']:.2f}",
            f"{row['spread']:.2f}",
            f"{row['tokens_per_second']:.1f}",
        )
    Console().print(table)
    write(args.json, {"rows": rows, "answers": [asdict(one) for one in found]})


if __name__ == "__main__":
    main()
