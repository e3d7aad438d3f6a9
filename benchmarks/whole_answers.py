"""Whole answers, the first token included: every method under `auto` against plain decoding.

What a user waits for is the prompt too, also where the draft model reads it. Prompts of six tasks
are spread over their lengths; each is answered by every method, at both doors, with 16, 64 and 200
tokens, in an order that turns, so that the noise of the machine falls on all alike. The claim is
that no method is slower than plain decoding on any task and length: the geometric mean of plain
seconds over its own, at least .98, with its bootstrap interval over prompts and repeats.

    python benchmarks/whole_answers.py --prompts question.jsonl --json whole_answers.json
    python benchmarks/whole_answers.py --prompts question.jsonl --target smollm2-135m \\
        --methods none ngram --doors load --answers 16 --per-task 1

`question.jsonl` is in Spec-Bench's format (`category`, `turns`). Greedy, batch 1; answers do not
end before their length.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _common import Question, write
from peers import geometric_mean, interval
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import paceline
from paceline.models import load_tokenizer, resolve
from paceline.text import encode_prompt

TASKS = {
    "multi-turn": ("writing", "coding", "reasoning"),
    "translation": ("translation",),
    "summarization": ("summarization",),
    "qa": ("qa",),
    "math": ("math_reasoning",),
    "rag": ("rag",),
}
METHODS = ("none", "ngram", "model", "tree")
SHORTEST, LONGEST = 20, 2000
WARM_UP = 8
"""Tokens of an answer that is not counted, by each method, before the first that is."""

Answer = Callable[[list[int], int], tuple[int, str]]
"""From a prompt and a length to the tokens that came out and what drafted."""


@dataclass(frozen=True)
class Timing:
    """One answer. `seconds` is the whole of it."""

    door: str
    method: str
    task: str
    question: int
    num_prompt_tokens: int
    num_answer_tokens: int
    repeat: int
    seconds: float
    drafted: str


def spread(path: Path, tokenizer: Any, per_task: int) -> list[tuple[str, Question, list[int]]]:
    """Prompts of each task from the shortest to the longest, within the limits, evenly by rank."""
    found: dict[str, list[tuple[int, Question, list[int]]]] = {task: [] for task in TASKS}
    of_category = {name: task for task, names in TASKS.items() for name in names}
    for line in path.read_text(encoding="utf-8").splitlines():
        item = json.loads(line)
        if (task := of_category.get(item["category"])) is None:
            continue
        question = Question(item["question_id"], item["category"], item["turns"][0])
        ids = encode_prompt(tokenizer, question.messages)
        if SHORTEST <= len(ids) <= LONGEST:
            found[task].append((len(ids), question, ids))
    few = {task: len(group) for task, group in found.items() if len(group) < per_task}
    if few:
        raise SystemExit(
            f"{path}: expected {per_task} prompts of each task, of {SHORTEST} to {LONGEST} tokens; "
            "found " + ", ".join(f"{count} of {task}" for task, count in few.items())
        )
    chosen = []
    for task, group in found.items():
        group.sort(key=lambda one: (one[0], one[1].number))
        last = len(group) - 1
        ranks = [last if per_task == 1 else last * i // (per_task - 1) for i in range(per_task)]
        chosen += [(task, group[rank][1], group[rank][2]) for rank in ranks]
    return chosen


def by_load(target: Path, draft: str, methods: Sequence[str]) -> dict[str, Answer]:
    """The methods by `paceline.load`, each with its defaults."""
    model = paceline.load(target, dtype="bfloat16")
    cheap = None
    if {"model", "tree"} & set(methods):
        cheap = paceline.load(draft, dtype="bfloat16", storage="int4", head_tokens=48_000)

    def answer(method: str) -> Answer:
        options: dict[str, Any] = {"drafter": method}
        if method in ("model", "tree"):
            options["draft_model"] = cheap
        if method == "tree":
            options["drafter_options"] = {"width": 1, "top_k": 3, "max_nodes": 7}

        def run(ids: list[int], length: int) -> tuple[int, str]:
            found = model.generate(
                ids, max_tokens=length, temperature=0, ignore_eos=True, **options
            )
            return len(found.token_ids), json.dumps(found.spec["mean_acceptance_length"])

        return run

    return {method: answer(method) for method in methods}


def by_huggingface(target: Path, draft: str, methods: Sequence[str]) -> dict[str, Answer]:
    """The methods by `model.generate(custom_generate=speculate(...))`, each with its defaults."""
    from transformers import AutoModelForCausalLM

    from paceline.integrations.huggingface import speculate

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    model.generation_config.eos_token_id = None  # answers do not end before their length

    def answer(method: str) -> Answer:
        options: dict[str, Any] = {"drafter": method}
        if method in ("model", "tree"):
            options["draft_model"] = draft
        if method == "tree":
            options |= {"width": 1, "top_k": 3, "max_nodes": 7}
        loop = speculate(**options)

        def run(ids: list[int], length: int) -> tuple[int, str]:
            prompt = torch.tensor([ids])
            with torch.inference_mode():
                output = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=length,
                    do_sample=False,
                    custom_generate=loop,
                    return_dict_in_generate=True,
                )
            acceptance = json.dumps(output.spec["mean_acceptance_length"])
            return output.sequences.shape[1] - len(ids), acceptance

        return run

    return {method: answer(method) for method in methods}


DOORS = {"load": by_load, "huggingface": by_huggingface}


def measure(
    door: str,
    methods: dict[str, Answer],
    prompts: Sequence[tuple[str, Question, list[int]]],
    answers: Sequence[int],
    repeats: int,
) -> list[Timing]:
    """Every method on every prompt and length, in an order that turns."""
    names, timings, turn = list(methods), [], 0
    with Progress(console=Console(stderr=True)) as progress:
        total = len(prompts) * len(answers) * repeats * len(names)
        task = progress.add_task(door, total=total)
        for name in names:
            methods[name](prompts[0][2], WARM_UP)
        for repeat in range(repeats):
            for of_task, question, ids in prompts:
                for length in answers:
                    turn += 1
                    for step in range(len(names)):
                        name = names[(turn + step) % len(names)]
                        start = time.perf_counter()
                        count, drafted = methods[name](ids, length)
                        seconds = time.perf_counter() - start
                        if count != length:
                            raise SystemExit(
                                f"{door}, {name}: expected {length} tokens, got {count}"
                            )
                        timings.append(
                            Timing(
                                door,
                                name,
                                of_task,
                                question.number,
                                len(ids),
                                length,
                                repeat,
                                seconds,
                                drafted,
                            )
                        )
                        progress.advance(task)
    return timings


def gains(timings: Sequence[Timing], door: str, method: str, length: int, task: str) -> list[float]:
    """Plain seconds over those of a method, by prompt and repeat."""
    chosen = {
        (t.method, t.question, t.repeat): t.seconds
        for t in timings
        if (t.door, t.num_answer_tokens) == (door, length) and task in ("all", t.task)
    }
    return [
        chosen["none", question, repeat] / seconds
        for (name, question, repeat), seconds in chosen.items()
        if name == method
    ]


def report(timings: Sequence[Timing]) -> tuple[Table, list[dict[str, Any]]]:
    """The gain of each method by door, length and task."""
    table = Table(title="plain seconds over a method's, whole answers (geometric mean, 95 %)")
    tasks = ["all", *dict.fromkeys(t.task for t in timings)]
    for name in ("door", "method", "tokens", *tasks):
        table.add_column(name)
    rows = []
    for door in dict.fromkeys(t.door for t in timings):
        for method in dict.fromkeys(t.method for t in timings if t.method != "none"):
            for length in dict.fromkeys(t.num_answer_tokens for t in timings):
                cells = []
                for task in tasks:
                    values = gains(timings, door, method, length, task)
                    mean, (low, high) = geometric_mean(values), interval(values)
                    cells.append(f"{mean:.2f} ({low:.2f}-{high:.2f})")
                    rows.append(
                        {
                            "door": door,
                            "method": method,
                            "num_answer_tokens": length,
                            "task": task,
                            "gain": mean,
                            "interval": [low, high],
                        }
                    )
                table.add_row(door, method, str(length), *cells)
    return table, rows


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=METHODS)
    parser.add_argument("--doors", nargs="+", choices=tuple(DOORS), default=tuple(DOORS))
    parser.add_argument("--answers", nargs="+", type=int, default=(16, 64, 200))
    parser.add_argument("--per-task", type=int, default=3)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    methods = ["none", *(name for name in options.methods if name != "none")]
    target = resolve(options.target, dtype="bfloat16").folder
    prompts = spread(options.prompts, load_tokenizer(target), options.per_task)
    timings: list[Timing] = []
    for door in options.doors:
        made = DOORS[door](target, options.draft, methods)
        timings += measure(door, made, prompts, options.answers, options.repeats)
        del made
    table, rows = report(timings)
    console = Console(width=180)
    console.print(table)
    slow = [row for row in rows if row["gain"] < 0.98]
    for row in slow:
        console.print("below .98:", row)
    write(options.json, {"rows": rows, "timings": [asdict(timing) for timing in timings]})


if __name__ == "__main__":
    main()
