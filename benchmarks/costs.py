"""What a round costs: passes by rows and context, verification, heads, and what is none of these.

    python benchmarks/costs.py --prompts question.jsonl --json costs.json
    python benchmarks/costs.py --only heads --json heads.json

- `passes`: milliseconds of a pass of 1 to 9 rows, at 200 and at 4,000 tokens of context, and
  whether any tensor of the cache moved in between.
- `verification`: milliseconds to verify a chain of 8 at a vocabulary of 151,936, greedy and at
  temperature 1 with and without top-p, for point masses and soft drafts, beside a pass of one row.
- `heads`: milliseconds of the host for a step of a draft head: of Medusa and EAGLE-3, with random
  weights that are so small that their products take no time.
- `overhead`: the share of decoding that is spent outside the forward passes of target and draft.
"""

from __future__ import annotations

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

from _common import CATEGORIES, median_ms, questions, write
from _head_time import heads, heads_table
from rich.console import Console

import paceline
from paceline.core.drafts import Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.core.sampling import SamplingParams
from paceline.generate.api import LanguageModel
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from paceline.verifiers.token import TokenVerifier


def passes(model: LanguageModel, contexts: tuple[int, ...] = (200, 4000)) -> dict[str, Any]:
    """The time of a pass by context and rows, interleaved between contexts."""
    target = model.target
    slot = target.open(max(contexts) + 16)
    tokens = [(7 * i + 3) % 1000 for i in range(max(contexts) + 1)]
    prefill(target, slot, tokens[: contexts[-1]])
    pointers = [t.data_ptr() for layer in slot.state.layers for t in layer]
    times: dict[str, dict[str, list[float]]] = {str(c): {} for c in contexts}
    for _ in range(15):
        for context in contexts:
            # Cutting a cache costs nothing; growing it again only needs rows that are there.
            slot.state.length = context
            for rows in (1, 2, 3, 5, 7, 9):
                draft = Draft(tuple(tokens[1:rows]))
                start = time.perf_counter()
                target.score([Work(slot, [tokens[0]], draft)])
                seconds = time.perf_counter() - start
                times[str(context)].setdefault(str(rows), []).append(1e3 * seconds)
    moved = pointers != [t.data_ptr() for layer in slot.state.layers for t in layer]
    medians = {
        c: {rows: statistics.median(values[1:]) for rows, values in by_rows.items()}
        for c, by_rows in times.items()
    }
    first, last = (medians[str(c)]["1"] for c in (contexts[0], contexts[-1]))
    return {"ms": medians, "ratio_long_to_short": last / first, "cache_moved": moved}


class AllAccepted(SeededNoise):
    """Accepts every draft token, so that a rule walks the whole chain."""

    def accept(self, probability: float, position: int) -> bool:
        return super().accept(probability, position) or True


def verification(model: LanguageModel, k: int = 8) -> dict[str, float]:
    """The time to verify a chain that is accepted whole, the longest that it can take.

    The logits are the model's own, behind the tokens of a text.
    """
    ids = model.encode(
        "The lighthouse was built in 1871. Its tower is 34 metres high, and its lamp can be seen "
        "from 22 miles away. Three keepers lived there with their families until 1962."
    )
    slot = model.target.open(len(ids))
    start = len(ids) - k - 1
    prefill(model.target, slot, ids[:start])
    draft = Draft(tuple(ids[start + 1 :]))
    logits = model.target.score([Work(slot, [ids[start]], draft)])[0].logits
    found = {}
    for name, params in {
        "greedy": SamplingParams(),
        "temperature 1": SamplingParams(temperature=1.0),
        "temperature 1, top-p 0.95": SamplingParams(temperature=1.0, top_p=0.95),
    }.items():
        warp = SamplingWarp(params)
        law = 0.5 * warp.law(logits[0])
        for kind in ("point mass", "soft"):
            laws = []
            for token in draft.tokens:
                laws.append(law.clone())
                laws[-1][token] += 0.5
            drafted = Draft(draft.tokens, probs=tuple(laws) if kind == "soft" else None)

            def run(drafted: Draft = drafted, warp: SamplingWarp = warp) -> None:
                verdict = TokenVerifier().verify(
                    drafted, lambda node: warp.law(logits[node + 1]), AllAccepted(0), 100
                )
                assert len(verdict.path) == k

            found[f"{name}, {kind}"] = median_ms(run, 30)
    return found


def overhead(
    model: LanguageModel, draft: LanguageModel, prompts: Path, max_tokens: int
) -> dict[str, float]:
    """The share of decoding outside forward passes, over one prompt of each category."""
    inside = [0.0]

    def timed(decoder: Any) -> None:
        run = decoder.run

        def clocked(batch: Any) -> Any:
            start = time.perf_counter()
            try:
                return run(batch)
            finally:
                inside[0] += time.perf_counter() - start

        decoder.run = clocked

    timed(model.decoder)
    timed(draft.decoder)
    shares, verify, decode = {}, 0.0, 0.0
    for question in questions(prompts, CATEGORIES, 1):
        seen = []
        for part in model.stream(question.messages, draft_model=draft, max_tokens=max_tokens):
            if not seen:  # the prefill is over
                before = inside[0]
            seen.append(part)
        result = seen[-1]
        # The first round lies before `before`: leave it out of both.
        rounds = list(seen[:-1])
        inner = inside[0] - before
        whole = result.decode_seconds * (len(rounds) - 1) / len(rounds)
        shares[question.category] = 1 - inner / whole
        verify += result.metrics.verify_s
        decode += result.decode_seconds
    return {
        **shares,
        "mean": statistics.fmean(shares.values()),
        "verify_share": verify / decode,
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--prompts", type=Path)
    parser.add_argument("--only", choices=["heads"], help="leave the models out")
    parser.add_argument("--max-tokens", type=int, default=96)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    console = Console()
    result: dict[str, Any] = {"heads_ms": heads()}
    console.print(heads_table(result["heads_ms"]))
    if options.only:
        write(options.json, result)
        return
    if options.prompts is None:
        parser.error("--prompts is needed for all but --only heads")
    # Refused now, not behind the minutes that the passes take.
    questions(options.prompts, CATEGORIES, 1)
    small = paceline.load("qwen2.5-coder-0.5b", dtype="bfloat16")
    result["passes 0.5b"] = passes(small)
    console.print("0.5b", result["passes 0.5b"])
    model = paceline.load("qwen2.5-coder-1.5b", dtype="bfloat16")
    cheap = paceline.load(
        "qwen2.5-coder-0.5b", dtype="bfloat16", storage="int4", head_tokens=48_000
    )
    result["passes 1.5b"] = passes(model)
    result["passes 0.5b int4"] = passes(cheap)
    console.print("1.5b", result["passes 1.5b"])
    console.print("0.5b int4", result["passes 0.5b int4"])
    result["verification_ms"] = verification(model)
    one_row = result["passes 1.5b"]["ms"]["200"]["1"]
    result["verification_share_of_pass"] = {
        name: ms / one_row for name, ms in result["verification_ms"].items()
    }
    console.print(result["verification_ms"], result["verification_share_of_pass"])
    result["overhead"] = overhead(model, cheap, options.prompts, options.max_tokens)
    console.print("overhead", result["overhead"])
    write(options.json, result)


if __name__ == "__main__":
    main()
