"""A plan's predictions against a benchmark: the speed-up by method and category.

    paceline bench --model T ... --json > bench.json
    paceline plan --model T --from bench.json --save-costs costs.json
    python benchmarks/plan_check.py --bench bench.json --costs costs.json --json check.json

Acceptance by position is that of the benchmark, category by category; what passes and drafts take
was measured by the plan, apart from the benchmark. Methods with a fixed draft length count.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
from pathlib import Path
from typing import Any

from _common import write
from rich.console import Console
from rich.table import Table

from paceline.economics.stats import AcceptanceCounts
from paceline.workbench.plan.costs import Costs
from paceline.workbench.plan.predict import predict


def check(bench: dict[str, Any], costs: Costs) -> list[dict[str, Any]]:
    """One entry a method and category, with the relative error of the prediction."""
    found = []
    # One measurement serves all lengths of a drafter: a plan keeps it by the name without one.
    names = {_kind(m): re.sub(r",k=[^,]*", "", m["name"]) for m in bench["methods"]}
    kept_as = {kind: name for kind, name in names.items() if name in costs.methods}
    for method in bench["methods"]:
        k, name = method["num_draft_tokens"], method["name"]
        kept = kept_as.get(_kind(method))
        if not isinstance(k, int) or kept is None:
            continue
        for category, part in method["categories"].items():
            counts = AcceptanceCounts.from_json(part["acceptance"])
            predicted = predict(
                name, counts, k, costs.passes, costs.methods[kept], plain=costs.methods["none"]
            ).speedup
            measured = part["speedup"]["value"]
            found.append(
                {
                    "method": name,
                    "category": category,
                    "predicted": predicted,
                    "measured": measured,
                    "error": predicted / measured - 1,
                }
            )
    return found


def _kind(method: dict[str, Any]) -> str:
    """All of a method but its length."""
    parts = ("drafter", "draft_model", "draft_storage", "draft_head_tokens", "settings")
    return json.dumps([method.get(part) for part in parts], sort_keys=True)


def main() -> None:
    """Compare."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--bench", type=Path, required=True)
    parser.add_argument("--costs", type=Path, required=True)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found = check(json.loads(options.bench.read_text()), Costs.read(options.costs))
    table = Table("method", "category", "predicted", "measured", "error")
    for row in found:
        table.add_row(
            row["method"],
            row["category"],
            f"{row['predicted']:.2f}",
            f"{row['measured']:.2f}",
            f"{row['error']:+.1%}",
        )
    errors = [abs(row["error"]) for row in found]
    console = Console(width=100)
    console.print(table)
    console.print(f"median {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    write(options.json, {"rows": found})


if __name__ == "__main__":
    main()
