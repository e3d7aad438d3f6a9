"""The runs that the lesson page replays: five prompts, each answered plainly and speculatively.

    python benchmarks/lesson_traces.py --model qwen2.5-coder-1.5b --draft-model qwen2.5-coder-0.5b

Run it on a quiet machine: each lane is the fastest of several runs. The files go into the page, so
they leave out what the page does not show, and numbers have as many digits as it needs.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import paceline
from paceline.trace import Recording, parse_trace
from paceline.trace.recording import to_line

DATA = Path(__file__).parent.parent / "src/paceline/lesson/page/data"

TEXT = (
    "The lighthouse at Cape Rowan was built in 1871. Its tower is 34 metres high, and its lamp can "
    "be seen from 22 miles away."
)
CODE = "Write a Python function that returns the n-th Fibonacci number."
STORY = "Tell me a bedtime story about a fox who wants to fly."

RUNS: dict[str, dict[str, Any]] = {
    "code": {"prompt": CODE, "drafter": "model", "num_draft_tokens": 4},
    "copy": {
        "prompt": f"Proofread this text and write it out in full:\n\n{TEXT}",
        "drafter": "ngram",
        "num_draft_tokens": 5,
    },
    # A draft that is dear and too long for text that cannot be guessed: it loses.
    "prose": {
        "prompt": STORY,
        "drafter": "model",
        "num_draft_tokens": 8,
        "draft_storage": "plain",
        "temperature": 1.0,
        "seed": 1,
    },
    "tree": {
        "prompt": STORY,
        "drafter": "tree",
        "num_draft_tokens": 3,
        "drafter_options": {"shape": "static", "branching": [3, 2, 1]},
        "temperature": 0.7,
        "seed": 2,
    },
    "coupling": {
        "prompt": STORY,
        "drafter": "model",
        "num_draft_tokens": 3,
        "verify": "coupling",
        "temperature": 0.7,
        "seed": 3,
    },
}
UNSEEN = ("num_sequences", "num_rows", "pass_rows", "prefill_rows", "drafter")
MACHINE = ("paceline", "cpu", "cores", "threads", "torch")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft-model", default="qwen2.5-coder-0.5b")
    parser.add_argument("--draft-storage", default="int4")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=DATA)
    parser.add_argument("--only", nargs="*", default=list(RUNS))
    given = parser.parse_args()
    model = paceline.load(given.model)
    for name in given.only:
        text = record(model, RUNS[name], given)
        (given.out / f"{name}.jsonl").write_text(text, encoding="utf-8")
        for lane in parse_trace(text).lanes.values():
            print(f"{name} {lane.name}: {lane.tokens_per_second:.1f} tokens/s, {len(text)} bytes")


def record(model: Any, run: dict[str, Any], given: argparse.Namespace) -> str:
    """The fastest plain and the fastest speculative run, as one trace."""
    shared = {name: run[name] for name in ("temperature", "seed", "verify") if name in run}
    draft = {name: run[name] for name in ("num_draft_tokens", "drafter_options") if name in run}
    if run["drafter"] != "ngram":
        storage = run.get("draft_storage", given.draft_storage)
        draft |= {"draft_model": given.draft_model, "draft_storage": storage}
    lanes = [
        fastest(model, run, given, {**shared, "drafter": drafter, **options})
        for drafter, options in (("none", {}), (run["drafter"], draft))
    ]
    (plain_head, plain), (speculative_head, speculative) = lanes
    head = {**plain_head, "lanes": {**plain_head["lanes"], **speculative_head["lanes"]}}
    head["environment"] = {
        name: value for name, value in head["environment"].items() if name in MACHINE
    }
    return "".join(f"{to_line(line)}\n" for line in [head, *plain, *speculative])


def fastest(
    model: Any, run: dict[str, Any], given: argparse.Namespace, options: dict[str, Any]
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the lines of the run whose last round came soonest."""
    messages = [{"role": "user", "content": run["prompt"]}]
    found = []
    for _ in range(given.repeats):
        recording = Recording()
        model.generate(messages, max_tokens=given.max_tokens, trace=recording, **options)
        head, *lines = json.loads("[" + ",".join(map(to_line, recording.lines())) + "]")
        # The page shows the question alone, without the marks of a chat.
        found.append(({**head, "prompt": run["prompt"]}, [shortened(line) for line in lines]))
    return min(found, key=lambda pair: pair[1][-1]["t"])


def shortened(line: dict[str, Any]) -> dict[str, Any]:
    """A line without what the page does not show."""
    kept = {name: value for name, value in line.items() if name not in UNSEEN}
    if kept.get("num_draft_tokens") == 0:
        kept.pop("draft", None)
    return rounded(kept)


def rounded(value: Any) -> Any:
    """Numbers to five places; a probability stays at most 1."""
    if isinstance(value, float):
        return round(value, 5)
    if isinstance(value, dict):
        return {name: rounded(item) for name, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
