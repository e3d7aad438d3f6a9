"""The Hugging Face door against transformers' own modes: one call, one argument, defaults alone.

    python benchmarks/huggingface.py --prompts question.jsonl --json huggingface.json
    python benchmarks/huggingface.py --target smollm2-135m --draft none --prompts question.jsonl

One model object serves every mode. Each prompt is answered once by every mode before the next
prompt starts, in an order that turns, so that the machine's noise falls on all alike. Greedy, batch
1, whole answers: the time is that of the call to `generate`, first token included. Speeds are
compared as ratios on one prompt; geometric means over prompts and bootstrap intervals are reported:

- `none` over transformers' plain decoding,
- `speculate()` over its prompt lookup,
- `speculate(draft_model=d)` over its assisted generation.

`tokens_alike` counts the answers that equal those of plain decoding; in bfloat16 texts may part at
near-ties. `memory` holds the resident bytes with the models loaded, after transformers' modes had
run once, and after Paceline's had (their pages of model files included), and the ratio of the last
two.
"""

from __future__ import annotations

import argparse
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import paceline  # before torch: it asks for large pages  # isort: skip
import psutil
import torch
from _common import CATEGORIES, questions, write
from peers import geometric_mean, interval
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from paceline.models import load_tokenizer, resolve
from paceline.text import encode_prompt

PAIRS = (
    ("paceline none", "transformers plain"),
    ("paceline speculate()", "transformers prompt lookup"),
    ("paceline speculate(draft_model)", "transformers assisted"),
    ("paceline speculate()", "transformers plain"),
    ("paceline speculate(draft_model)", "transformers plain"),
)
"""Which mode is compared with which."""


def modes_of(draft: Any) -> dict[str, dict[str, Any]]:
    """What is passed to `generate` beside the prompt and the length, by mode."""
    modes: dict[str, dict[str, Any]] = {
        "transformers plain": {},
        "transformers prompt lookup": {"prompt_lookup_num_tokens": 10},
        "transformers assisted": {"assistant_model": draft},
        "paceline none": {"custom_generate": paceline.speculate("none")},
        "paceline speculate()": {"custom_generate": paceline.speculate()},
    }
    if draft is None:
        del modes["transformers assisted"]
    else:
        speculation = paceline.speculate(draft_model=draft)
        modes["paceline speculate(draft_model)"] = {"custom_generate": speculation}
    return modes


def resident() -> int:
    """The bytes of this process that are in memory."""
    gc.collect()
    size: int = psutil.Process().memory_info().rss
    return size


def model_of(name: str, dtype: torch.dtype) -> Any:
    """A model as a user of transformers has it."""
    from transformers import AutoModelForCausalLM

    folder = resolve(name, dtype=str(dtype).removeprefix("torch.")).folder
    return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()


def answer(model: Any, ids: list[int], max_tokens: int, options: dict[str, Any]) -> Any:
    """One call: the answer's tokens and the seconds of the whole call."""
    prompt = torch.tensor([ids])
    start = time.perf_counter()
    output = model.generate(
        prompt,
        attention_mask=torch.ones_like(prompt),
        max_new_tokens=max_tokens,
        do_sample=False,
        **options,
    )
    return output[0, len(ids) :].tolist(), time.perf_counter() - start


def measure(
    run: Callable[[str, list[int], int], Any],
    names: list[str],
    prompts: list[tuple[str, list[int]]],
    lengths: list[int],
) -> list[dict[str, Any]]:
    """Every mode on every prompt and length, in an order that turns."""
    found = []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task("measure", total=len(prompts) * len(lengths) * len(names))
        turn = 0
        for number, (category, ids) in enumerate(prompts):
            for length in lengths:
                for step in range(len(names)):
                    name = names[(turn + step) % len(names)]
                    progress.update(task, description=f"{category}: {name}")
                    tokens, seconds = run(name, ids, length)
                    found.append(
                        {
                            "mode": name, "prompt": number, "category": category,
                            "prompt_tokens": len(ids), "max_tokens": length, "tokens": tokens,
                            "seconds": seconds, "tokens_per_second": len(tokens) / seconds,
                        }
                    )  # fmt: skip
                    progress.advance(task)
                turn += 1
    return found


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Speeds by mode, and the ratios of `PAIRS` with their intervals, by answer length."""
    speed = {(a["mode"], a["prompt"], a["max_tokens"]): a["tokens_per_second"] for a in answers}
    tokens = {(a["mode"], a["prompt"], a["max_tokens"]): a["tokens"] for a in answers}
    modes = list(dict.fromkeys(a["mode"] for a in answers))
    lengths = sorted({a["max_tokens"] for a in answers})
    numbers = sorted({a["prompt"] for a in answers})
    result: dict[str, Any] = {}
    for length in lengths:
        ratios = {}
        for mode, base in PAIRS:
            if mode in modes and base in modes:
                values = [speed[mode, n, length] / speed[base, n, length] for n in numbers]
                low, high = interval(values)
                ratios[f"{mode} / {base}"] = {
                    "ratio": geometric_mean(values), "interval": [low, high],
                    "least": min(values),
                }  # fmt: skip
        result[str(length)] = {
            "tokens_per_second": {
                mode: geometric_mean([speed[mode, n, length] for n in numbers]) for mode in modes
            },
            "tokens_alike": {
                mode: sum(
                    tokens[mode, n, length] == tokens["transformers plain", n, length]
                    for n in numbers
                )
                for mode in modes
            },
            "ratios": ratios,
        }
    return result


def show(result: dict[str, Any]) -> None:
    """Two tables a length."""
    console = Console()
    for length, found in result["by_length"].items():
        table = Table(title=f"answers of {length} tokens, whole calls")
        for column in ("mode", "tokens/s", "alike"):
            table.add_column(column)
        for mode, value in found["tokens_per_second"].items():
            table.add_row(mode, f"{value:.1f}", str(found["tokens_alike"][mode]))
        console.print(table)
        for name, ratio in found["ratios"].items():
            low, high = ratio["interval"]
            console.print(f"{name}: {ratio['ratio']:.2f} ({low:.2f} to {high:.2f})")
    console.print(result["memory"])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True, help="in Spec-Bench's format")
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b", help="'none' is none")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--categories", nargs="+", default=CATEGORIES)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, nargs="+", default=[64])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    dtype = getattr(torch, options.dtype)
    model = model_of(options.target, dtype)
    draft = None if options.draft == "none" else model_of(options.draft, dtype)
    tokenizer = load_tokenizer(resolve(options.target, dtype=options.dtype).folder)
    asked = questions(options.prompts, options.categories, options.per_category)
    prompts = [(q.category, encode_prompt(tokenizer, q.messages)) for q in asked]
    memory = {"loaded": resident()}
    modes = modes_of(draft)

    def run(name: str, ids: list[int], length: int) -> Any:
        return answer(model, ids, length, modes[name])

    # Each mode once, to warm up; transformers' first, so that what Paceline adds can be told apart.
    for key, prefix in (("transformers", "transformers"), ("paceline", "paceline")):
        for name in modes:
            if name.startswith(prefix):
                run(name, prompts[0][1], 8)
        memory[key] = resident()
    memory["ratio"] = memory["paceline"] / memory["transformers"]
    answers = measure(run, list(modes), prompts, options.max_tokens)
    result = {
        "target": options.target, "draft": options.draft, "dtype": options.dtype,
        "memory": memory, "by_length": summary(answers), "answers": answers,
    }  # fmt: skip
    show(result)
    write(options.json, result)


if __name__ == "__main__":
    main()
