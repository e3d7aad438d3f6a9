"""Write a speed table of the README from the JSON of `peers.py` or of `huggingface.py`.

python benchmarks/readme_table.py benchmarks/results/peers.json
python benchmarks/readme_table.py benchmarks/results/huggingface.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from typing import Any

README = Path(__file__).parent.parent / "README.md"
BEGIN = "<!-- {} table: begin (written from the JSON of benchmarks/{}.py) -->"
END = "<!-- {} table: end -->"


def measured_on(result: dict[str, Any]) -> Iterator[str]:
    """The machine, the versions, the commit and the command."""
    made = result["environment"]
    capability = made.get("cpu_capability") or made["capability"]
    yield (
        f"Greedy, batch 1, bfloat16, on {made['cores']} cores of {made['cpu']} "
        f"({capability}), torch {made['torch']}, transformers {made['transformers']}, "
        f"commit `{made['commit']}`:"
    )
    yield ""
    yield f"`{made['command']}`"


def peers(result: dict[str, Any]) -> Iterator[str]:
    """The table of each group, and what it was measured on."""
    yield from measured_on(result)
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


def huggingface(result: dict[str, Any]) -> Iterator[str]:
    """Whole calls of `generate` by mode and category, each mode beside its counterpart."""
    yield from measured_on(result)
    for length, group in result["by_length"].items():
        answers = [one for one in result["answers"] if one["max_tokens"] == int(length)]
        categories = list(dict.fromkeys(one["category"] for one in answers))
        yield ""
        yield f"| tokens/s, {length} tokens | {' | '.join(categories)} | all | ratio (95 %) |"
        yield f"|---|{'---:|' * (len(categories) + 1)}---|"
        for mode, speed in group["tokens_per_second"].items():
            means = [
                geometric_mean(
                    one["tokens_per_second"]
                    for one in answers
                    if (one["mode"], one["category"]) == (mode, category)
                )
                for category in categories
            ]
            ratios = [
                f"{found['ratio']:.2f} ({found['interval'][0]:.2f}-{found['interval'][1]:.2f}) "
                f"over {pair.split(' / ')[1]}"
                for pair, found in group["ratios"].items()
                if pair.split(" / ")[0] == mode
            ]
            row = " | ".join(f"{mean:.1f}" for mean in (*means, speed))
            yield f"| {mode} | {row} | {'; '.join(ratios)} |"


def main() -> None:
    """Replace what stands between the marks of the script that wrote the JSON."""
    result = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    script, table = ("peers", peers) if "groups" in result else ("huggingface", huggingface)
    name = "benchmark" if script == "peers" else "Hugging Face"
    begin, end = BEGIN.format(name, script), END.format(name)
    text = README.read_text(encoding="utf-8")
    head, rest = text.split(begin)
    _, tail = rest.split(end)
    README.write_text(
        f"{head}{begin}\n{chr(10).join(table(result))}\n{end}{tail}", encoding="utf-8"
    )


if __name__ == "__main__":
    main()
