"""Write the speed table of the README from the JSON of `peers.py`.

python benchmarks/readme_table.py benchmarks/results/peers.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- benchmark table: begin (written from the JSON of benchmarks/peers.py) -->"
END = "<!-- benchmark table: end -->"


def lines(result: dict[str, Any]) -> Iterator[str]:
    """The table of each group, and what it was measured on."""
    made = result["environment"]
    capability = made.get("cpu_capability") or made["capability"]
    yield (
        f"Greedy, batch 1, bfloat16, on {made['cores']} cores of {made['cpu']} "
        f"({capability}), torch {made['torch']}, transformers {made['transformers']}, "
        f"commit `{made['commit']}`:"
    )
    yield ""
    yield f"`{made['command']}`"
    for group in result["groups"].values():
        summary = group["summary"]
        categories = list(next(iter(summary.values()))["tokens_per_second"])
        peer = next(name for name in reversed(summary) if name.startswith("best of"))
        yield ""
        yield f"| tokens/s | {' | '.join(categories)} | over {peer} (95 %) | acceptance length |"
        yield f"|---|{'---:|' * (len(categories) + 2)}"
        for mode, row in summary.items():
            speeds = " | ".join(f"{row['tokens_per_second'][name]:.1f}" for name in categories)
            low, high = row["interval"]
            length = row["mean_acceptance_length"]
            yield (
                f"| {mode} | {speeds} | {row['speedup']:.2f} ({low:.2f}-{high:.2f}) | "
                f"{'' if length is None else f'{length:.2f}'} |"
            )


def main() -> None:
    """Replace what stands between the two marks."""
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    _, tail = rest.split(END)
    README.write_text(
        f"{head}{BEGIN}\n{chr(10).join(lines(result))}\n{END}{tail}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
