"""What each verification rule costs on the host, and what it accepts on two known pairs.

Time: a vocabulary of 151,936 tokens, laws in float32, one thread; a chain of 5 draft tokens, and a
tree of 12 (2 children of the root, 2 of each of these, and so on), drawn from a law q whose overlap
with p is that of a draft model (sum min(p, q) about .8). A round is the rule alone: the laws are
there. The median of many rounds with different seeds, in milliseconds.

Acceptance: one node with 1, 2 and 3 children of the pairs A and B of the tests, by enumeration.

    python benchmarks/rules.py --json benchmarks/results/rules.json
    python benchmarks/rules.py --table benchmarks/results/rules.json
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from _common import write
from torch import Tensor

from paceline.core.drafts import ROOT, Draft, Scheme
from paceline.core.protocols import Noise, Verifier
from paceline.generate import plugins
from paceline.sampling.noise import SeededNoise
from paceline.sampling.siblings import draw_siblings
from paceline.testing.law import output_law
from paceline.testing.transport import optimal_acceptance

VOCAB = 151_936
CHAIN = (-1, 0, 1, 2, 3)
TREE = (-1, -1, 0, 0, 1, 1, 2, 2, 3, 3, 4, 4)
PAIRS = {
    "A": ((0.3, 0.4, 0.3), (0.6, 0.3, 0.1)),
    "B": ((0.5, 0.25, 0.125, 0.125), (0.1, 0.2, 0.3, 0.4)),
}


def rules() -> dict[str, Verifier]:
    """The rules of the package by their own name."""
    points = plugins.points("verifier").values()
    made = [point.load()() for point in points if point.value.startswith("paceline.")]
    return {rule.name: rule for rule in made}


def draw(q: Callable[[int], Tensor], shape: tuple[int, ...], scheme: Scheme, noise: Noise) -> Draft:
    """Draws the children of every node of the shape; `q` takes the node of the shape."""
    tokens: list[int] = [0] * len(shape)
    laws: list[Tensor | None] = [None] * len(shape)
    for parent in dict.fromkeys(shape):
        wanted = [node for node, above in enumerate(shape) if above == parent]
        depth = len(Draft((0,) * len(shape), shape).path(parent))
        drawn = draw_siblings(q(parent), len(wanted), scheme, noise, depth)
        for node, token, law in zip(wanted, drawn.tokens, drawn.probs, strict=True):
            tokens[node], laws[node] = token, law
    return Draft(tuple(tokens), shape, tuple(laws), scheme)


def large_laws(count: int) -> tuple[list[Tensor], list[Tensor]]:
    """Peaked laws over a large vocabulary, and for each a draft law that is near it."""
    generator = torch.Generator().manual_seed(0)
    logits = 3.0 * torch.randn(count, VOCAB, generator=generator)
    # A few tokens hold most of the mass, as in text.
    logits[:, :200] += 9 + 2 * torch.randn(count, 200, generator=generator)
    draft = logits + 0.6 * torch.randn(count, VOCAB, generator=generator)
    return list(logits.softmax(dim=-1)), list(draft.softmax(dim=-1))


def host_time(rule: Verifier, shape: tuple[int, ...], scheme: Scheme, rounds: int) -> float:
    """The median time of one verdict, in milliseconds."""
    p, q = large_laws(len(shape) + 1)
    times = []
    for seed in range(rounds):
        noise = SeededNoise(seed)
        draft = draw(lambda node: q[node + 1], shape, scheme, noise)
        start = time.perf_counter()
        rule.verify(draft, lambda node: p[node + 1], noise, 0)
        times.append(time.perf_counter() - start)
    return 1e3 * statistics.median(times)


def acceptance(rule: Verifier, pair: str, k: int, scheme: Scheme) -> float:
    """The exact probability that one of k children of a node is accepted."""
    p, q = (torch.tensor(values, dtype=torch.float64) for values in PAIRS[pair])

    def run(noise: Noise) -> bool:
        draft = draw(lambda node: q, (ROOT,) * k, scheme, noise)
        return bool(rule.verify(draft, lambda node: p, noise, 0).path)

    return output_law(run).get(True, 0.0)


def coupled_acceptance(pair: str) -> float:
    """sum_j 1 / sum_i max(p_i / p_j, q_i / q_j), for one child that shares the noise."""
    p, q = (torch.tensor(values, dtype=torch.float64) for values in PAIRS[pair])
    return sum(1 / float(torch.maximum(p / p[j], q / q[j]).sum()) for j in range(len(p)))


def measure(rounds: int) -> list[dict[str, Any]]:
    """One entry a rule and scheme."""
    found = []
    for rule in rules().values():
        for scheme in sorted(rule.schemes):
            chain = scheme is Scheme.SINGLE
            entry: dict[str, Any] = {"rule": rule.name, "scheme": scheme, "exact": rule.exact}
            entry["ms"] = host_time(rule, CHAIN if chain else TREE, scheme, rounds)
            entry["num_draft_tokens"] = len(CHAIN if chain else TREE)
            for pair in PAIRS:
                if rule.couples:
                    entry[pair] = [coupled_acceptance(pair)] if chain else None
                else:
                    ks = (1,) if chain else (1, 2, 3)
                    entry[pair] = [acceptance(rule, pair, k, scheme) for k in ks]
            found.append(entry)
            print(entry, file=sys.stderr, flush=True)
    return found


def bounds() -> dict[str, dict[str, list[float]]]:
    """The best that any exact rule could accept."""
    return {
        pair: {
            scheme: [
                optimal_acceptance(
                    *(torch.tensor(values, dtype=torch.float64) for values in laws), k, scheme
                )
                for k in (1, 2, 3)
            ]
            for scheme in Scheme
            if scheme is not Scheme.SINGLE
        }
        for pair, laws in PAIRS.items()
    }


KINDS = {
    Scheme.SINGLE: "chain",
    Scheme.IID: "with replacement",
    Scheme.WITHOUT_REPLACEMENT: "without replacement",
    Scheme.CHOSEN: "chosen",
    Scheme.MIXED: "one drawn, others chosen",
}


def table(result: dict[str, Any]) -> str:
    """The table of docs/exactness.md, in Markdown; `rrs` and `rrsw` are `tree`, held to less."""
    lines = [
        "| rule | drafts | host time, ms | accepts on A, k = 1, 2, 3 | on B |",
        "|---|---|---|---|---|",
    ]

    def values(numbers: list[float] | None) -> str:
        return "" if numbers is None else ", ".join(f"{number:.4f}" for number in numbers)

    for scheme, kind in KINDS.items():
        for entry in result["rules"]:
            repeated = entry["rule"] in ("rrs", "rrsw") or entry["A"] is None
            if entry["scheme"] == scheme and not repeated:
                name = f"`{entry['rule']}`" + ("" if entry["exact"] else " (not exact)")
                cells = name, kind, f"{entry['ms']:.2f}", values(entry["A"]), values(entry["B"])
                lines.append(f"| {' | '.join(cells)} |")
        if scheme in result["bounds"]["A"]:
            best = (result["bounds"][pair][scheme] for pair in PAIRS)
            lines.append(f"| best possible | {kind} | | {' | '.join(map(values, best))} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=60)
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures here")
    parser.add_argument("--table", type=Path, metavar="FILE", help="the table of a finished run")
    arguments = parser.parse_args()
    if arguments.table:
        print(table(json.loads(arguments.table.read_text(encoding="utf-8"))))
        return
    torch.set_num_threads(1)
    p, q = large_laws(4)
    result = {
        "vocab_size": VOCAB,
        "threads_used": 1,
        "overlap": statistics.mean(
            float(torch.minimum(a, b).sum()) for a, b in zip(p, q, strict=True)
        ),
        "rules": measure(arguments.rounds),
        "bounds": bounds(),
    }
    write(arguments.json, result)
    print(table(result))


if __name__ == "__main__":
    main()
