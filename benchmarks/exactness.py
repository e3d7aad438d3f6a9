"""Are the tokens the same? On real models and real prompts, greedy.

    python benchmarks/exactness.py --prompts question.jsonl --json exactness.json

Three comparisons:

- `reference`: SmolLM2 in float32 against `generate` of transformers, token by token.
- `invariant`: bfloat16 in invariant mode, every drafter against `none`: tokens and logit bits.
- `tie`: bfloat16 without it. The first difference of each answer is reported with the gap between
  the two best logits of the plain pass, and with how far the logits of the two passes differ there;
  a difference is a tie where the gap is within twice that, and the passes differ by no more than
  rounding explains (see `paceline.testing.differences`).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from _common import CATEGORIES, Question, questions, write
from rich.console import Console
from rich.progress import track
from torch import Tensor

import paceline
from paceline.controllers.fixed import FixedController
from paceline.core.events import Round
from paceline.core.protocols import Drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.engine.loop import Request, decode
from paceline.generate.api import LanguageModel
from paceline.models import resolve
from paceline.sampling.noise import SeededNoise
from paceline.testing.differences import first_difference
from paceline.verifiers.token import TokenVerifier


def answer(
    model: LanguageModel, ids: Sequence[int], drafter: Drafter, k: int, max_tokens: int
) -> tuple[list[int], list[Tensor]]:
    """The tokens, and the logits behind each."""
    request = Request(
        prompt=ids,
        drafter=drafter,
        controller=FixedController(k),
        verifier=TokenVerifier(),
        noise=SeededNoise(0),
        max_tokens=max_tokens,
        stop_token_ids=model.eos_token_ids,
        keep_logits=True,
    )
    rounds = [e for e in decode(model.target, [request]) if isinstance(e, Round)]
    tokens = [token for event in rounds for token in event.tokens]
    return tokens, [row for event in rounds if event.logits is not None for row in event.logits]


def against_transformers(asked: Sequence[Question], max_tokens: int) -> list[dict[str, Any]]:
    """SmolLM2 in float32: every drafter against transformers."""
    from transformers import AutoModelForCausalLM

    folder = resolve("smollm2-135m", dtype="float32").folder
    reference = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    model = paceline.load("smollm2-135m", dtype="float32")
    cheap = paceline.load("smollm2-135m", dtype="float32", storage="int4")
    drafters = {"none": NoDrafter(), "ngram": NgramDrafter(), "model": ModelDrafter(cheap.target)}
    rows = []
    for question in track(asked, "float32 against transformers"):
        ids = model.encode(question.messages)
        prompt = torch.tensor([ids])
        output = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=max_tokens,
        )
        expected = output[0, len(ids) :].tolist()
        for name, drafter in drafters.items():
            tokens, _ = answer(model, ids, drafter, 5, max_tokens)
            rows.append(
                {"question": question.number, "drafter": name, "identical": tokens == expected}
            )
    return rows


def pairs(invariant: bool) -> Iterator[tuple[str, LanguageModel, dict[str, Drafter]]]:
    """SmolLM2 with itself in int4 as a draft, then the Qwen pair."""
    for target, draft in (
        ("smollm2-135m", "smollm2-135m"),
        ("qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"),
    ):
        model = paceline.load(target, dtype="bfloat16", invariant=invariant)
        cheap = paceline.load(draft, dtype="bfloat16", storage="int4", head_tokens=32_000)
        yield target, model, {"ngram": NgramDrafter(), "model": ModelDrafter(cheap.target)}


def against_plain(
    asked: Sequence[Question], max_tokens: int, *, invariant: bool
) -> list[dict[str, Any]]:
    """bfloat16: every drafter against `none` in the same mode."""
    rows = []
    for name, model, drafters in pairs(invariant):
        for question in track(asked, f"{name}, {'invariant' if invariant else 'default'} mode"):
            ids = model.encode(question.messages)
            plain, plain_logits = answer(model, ids, NoDrafter(), 0, max_tokens)
            for drafter_name, drafter in drafters.items():
                for k in (3, 7):
                    tokens, logits = answer(model, ids, drafter, k, max_tokens)
                    row = {
                        "model": name,
                        "question": question.number,
                        "drafter": drafter_name,
                        "k": k,
                        "num_tokens": len(plain),
                        "identical": tokens == plain,
                        "bit_equal": tokens == plain
                        and all(map(torch.equal, logits, plain_logits)),
                    }
                    parting = first_difference(
                        plain, plain_logits, tokens, logits, dtype=torch.bfloat16
                    )
                    if parting is not None:
                        row |= {**asdict(parting), "tie": parting.label == "tie"}
                    rows.append(row)
    return rows


def main() -> None:
    """Run the comparisons."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--categories", nargs="+", default=CATEGORIES)
    parser.add_argument("--per-category", type=int, default=2)
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--only", nargs="+", default=["reference", "invariant", "tie"])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    asked = questions(options.prompts, options.categories, options.per_category)
    more = questions(options.prompts, options.categories, 4)[:20]
    result: dict[str, Any] = {}
    console = Console()
    if "reference" in options.only:
        rows = result["reference"] = against_transformers(more, options.max_tokens)
        same = sum(row["identical"] for row in rows)
        console.print(f"float32 against transformers: {same} of {len(rows)} answers identical")
    if "invariant" in options.only:
        rows = result["invariant"] = against_plain(asked, options.max_tokens, invariant=True)
        same, bits = (sum(row[key] for row in rows) for key in ("identical", "bit_equal"))
        tokens = sum(row["num_tokens"] for row in rows)
        console.print(
            f"invariant mode: {same} of {len(rows)} answers identical, {bits} with equal logit "
            f"bits ({tokens} tokens)"
        )
    if "tie" in options.only:
        rows = result["tie"] = against_plain(asked, options.max_tokens, invariant=False)
        parted = [row for row in rows if not row["identical"]]
        ties = sum(row["tie"] for row in parted)
        gaps = ", ".join(f"{row['gap']:.4f}" for row in parted)
        console.print(
            f"default mode: {len(rows) - len(parted)} of {len(rows)} answers identical; of "
            f"{len(parted)} that part, {ties} part at a tie (gaps {gaps or '-'})"
        )
    write(options.json, result)


if __name__ == "__main__":
    main()
