"""The host time of a round of prompt lookup, by the length of the text before it.

    python benchmarks/ngram_host_time.py --json ngram_host_time.json

A round is a proposal and the observation of what was committed. The text is random over a small
alphabet, so that every lookup finds something. An index makes a round cost the same behind 100
and behind 100,000 tokens.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path

from _common import write

from paceline.drafters.ngram import NgramDrafter
from paceline.math.noise import SeededNoise
from paceline.math.warp import SamplingWarp
from paceline.types import Budget, Committed, SamplingParams, TargetInfo


def round_times(length: int, *, rounds: int, max_ngram: int, vocab_size: int) -> list[float]:
    """Microseconds of each of `rounds` rounds behind `length` tokens, 3 committed a round."""
    chance = random.Random(0)
    tokens = [chance.randrange(vocab_size) for _ in range(length + 3 * rounds)]
    session = NgramDrafter(max_ngram=max_ngram).open(TargetInfo("none", vocab_size), len(tokens))
    session.observe(Committed(tuple(tokens[:length])))
    warp, noise = SamplingWarp(SamplingParams()), SeededNoise(0)
    times = []
    for at in range(length, len(tokens), 3):
        start = time.perf_counter()
        session.propose(Budget(8), warp, noise)
        session.observe(Committed(tuple(tokens[at : at + 3])))
        times.append(1e6 * (time.perf_counter() - start))
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--lengths", type=int, nargs="+", default=[100, 1_000, 10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("--max-ngram", type=int, default=3)
    parser.add_argument("--vocab-size", type=int, default=50)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    figures = []
    for length in options.lengths:
        times = round_times(
            length,
            rounds=options.rounds,
            max_ngram=options.max_ngram,
            vocab_size=options.vocab_size,
        )
        figures.append(
            {
                "tokens_before": length,
                "median_us": statistics.median(times),
                "p99_us": statistics.quantiles(times, n=100)[98],
            }
        )
        print(f"{length:>8} tokens before: {figures[-1]['median_us']:6.1f} us a round (median)")
    write(options.json, {"rounds": options.rounds, "figures": figures})


if __name__ == "__main__":
    main()
