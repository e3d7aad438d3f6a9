"""The same seed gives the same text with any drafter: the `coupling` rule on a real model.

    python benchmarks/coupling.py --prompts question.jsonl --json coupling.json

SmolLM2 in float32, temperature 1. Each prompt is answered plainly and with every drafter, with one
seed a prompt. The tokens must be the same in all.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from _common import write
from rich.console import Console
from rich.progress import track

import paceline
from paceline.workbench.workload import read_items, select


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=50)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    model = paceline.load("smollm2-135m", dtype="float32")
    draft = paceline.load("smollm2-135m", storage="int4", head_tokens=16_000)
    drafters: dict[str, dict[str, Any]] = {
        "none": {"drafter": "none"},
        "ngram": {"drafter": "ngram"},
        "suffix": {"drafter": "suffix"},
        "lookahead": {"drafter": "lookahead"},
        "recycling": {"drafter": "recycling"},
        "model": {"drafter": "model", "draft_model": draft},
    }
    rows = []
    for number, item in enumerate(
        track(select(read_items(options.prompts), limit=options.limit), "coupling")
    ):
        tokens, accepted = {}, {}
        for name, drafting in drafters.items():
            result = model.generate(
                item.as_prompt(chat=True),
                **drafting,
                controller="fixed",
                num_draft_tokens=4,
                verify="coupling",
                temperature=1.0,
                seed=number,
                max_tokens=options.max_tokens,
            )
            tokens[name] = result.token_ids
            accepted[name] = result.metrics.mean_acceptance_length
        rows.append(
            {
                "prompt": item.id,
                "category": item.category,
                "num_tokens": len(tokens["none"]),
                "identical": {name: found == tokens["none"] for name, found in tokens.items()},
                "mean_acceptance_length": accepted,
            }
        )
    same = {name: sum(row["identical"][name] for row in rows) for name in drafters}
    total = sum(row["num_tokens"] for row in rows)
    Console().print(f"identical answers of {len(rows)} ({total} tokens): {same}")
    write(options.json, {"identical": same, "rows": rows})


if __name__ == "__main__":
    main()
