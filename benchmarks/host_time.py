"""The host time of a round of every drafter that needs tokens alone, and the memory it takes.

    python benchmarks/host_time.py --prompts question.jsonl --json benchmarks/results/host_time.json

A round is a proposal and the observation of what was committed, here three tokens. The store of a
drafter (its own text, past outputs, documents, a prediction, a corpus) holds real text: prompts in
Spec-Bench's format through the tokenizer of a model, from the start again where they end. The live
text is `seen`, text that stands in the store, which gives the longest matches; `new`, the last
tenth of the prompts, which the store does not hold; or `one token` over and over, behind a store of
nothing else, which gives the most matches. The time of the thread alone is told besides, since on a
machine that others use, the clock counts them too.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

from _common import write

from paceline.core.drafts import Budget
from paceline.core.passes import drive
from paceline.core.protocols import Drafter, DraftSession
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, TargetInfo
from paceline.core.view import TargetView
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.predicted_output import PredictedOutputDrafter
from paceline.drafters.reference import ReferenceDrafter
from paceline.drafters.retrieval import RetrievalDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.drafting.stores.corpus import Corpus
from paceline.drafting.stores.outputs import PastOutputs
from paceline.models import load_tokenizer, resolve
from paceline.models.finding import native_dtype
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp

COMMITTED = 3
PIECE = 500
"""The length of a past output and of a document of the corpus."""


class Case(NamedTuple):
    """A drafter by name, what it is made of, and the prompt that it sees first."""

    name: str
    make: Callable[[Sequence[int]], Drafter]
    own_text: bool


def pieces(store: Sequence[int]) -> Iterator[Sequence[int]]:
    for begin in range(0, len(store), PIECE):
        yield store[begin : begin + PIECE]


def with_outputs(store: Sequence[int], halves: int = 1, **settings: Any) -> SuffixDrafter:
    # A store fills one half, then the other: this one has room for all in so many of them.
    outputs = PastOutputs(capacity=2 * -(-len(store) // (halves * PIECE)) * PIECE)
    for piece in pieces(store):
        outputs.add(piece)
    return SuffixDrafter(store=outputs, learn=False, **settings)


CASES = [
    Case("ngram", lambda store: NgramDrafter(), True),
    Case("suffix, request", lambda store: SuffixDrafter(), True),
    Case("suffix, request, tree", lambda store: SuffixDrafter(mode="tree", factor=4.0), True),
    Case("suffix, past outputs", with_outputs, False),
    Case(
        "suffix, past outputs, tree",
        lambda store: with_outputs(store, mode="tree", factor=4.0),
        False,
    ),
    Case("suffix, full store", lambda store: with_outputs(store, 2), False),
    Case(
        "suffix, full store, tree",
        lambda store: with_outputs(store, 2, mode="tree", factor=4.0),
        False,
    ),
    Case("reference", lambda store: ReferenceDrafter((tuple(store),)), False),
    Case("predicted-output", lambda store: PredictedOutputDrafter(tuple(store)), False),
    Case("retrieval", lambda store: RetrievalDrafter(Corpus.of(pieces(store))), False),
    Case(
        "retrieval, tree",
        lambda store: RetrievalDrafter(Corpus.of(pieces(store)), mode="tree"),
        False,
    ),
]


def token_streams(prompts: Path, model: str) -> tuple[list[int], list[int]]:
    """The tokens of all prompts but the last tenth, and of that tenth."""
    tokenizer = load_tokenizer(resolve(model, dtype=native_dtype()).folder)
    texts = [
        "\n".join(json.loads(line)["turns"]) for line in prompts.read_text("utf-8").splitlines()
    ]
    ids = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
    cut = len(ids) * 9 // 10
    return [t for text in ids[:cut] for t in text], [t for text in ids[cut:] for t in text]


def opened(case: Case, store: Sequence[int], vocab_size: int) -> DraftSession:
    """A session that has its store, and its own text or a short prompt."""
    session = case.make(store).open(TargetView(TargetInfo("none", vocab_size)), 10**6)
    session.observe(Committed(tuple(store if case.own_text else store[:8])))
    return session


def round_times(
    session: DraftSession, live: Sequence[int], budget: Budget
) -> list[tuple[float, float]]:
    """Microseconds of each round, by the clock and of this thread."""
    warp, noise = SamplingWarp(SamplingParams()), SeededNoise(0)
    times = []
    for at in range(0, len(live), COMMITTED):
        start, own = time.perf_counter(), time.thread_time()
        drive(session.propose(budget, warp, noise))
        session.observe(Committed(tuple(live[at : at + COMMITTED])))
        times.append((1e6 * (time.perf_counter() - start), 1e6 * (time.thread_time() - own)))
    return times


def memory(case: Case, store: Sequence[int], vocab_size: int) -> int:
    """The bytes that the drafter and one session hold."""
    tracemalloc.start()
    session = opened(case, store, vocab_size)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    session.close()
    return held


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=Path, required=True, help="in Spec-Bench's format")
    parser.add_argument("--model", default="smollm2-135m", help="whose tokenizer is used")
    parser.add_argument("--tokens", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--rounds", type=int, default=2_000)
    parser.add_argument("-k", "--num-draft-tokens", type=int, default=8)
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    old, new = token_streams(options.prompts, options.model)
    vocab_size = 1 + max(*old, *new)
    budget, count = Budget(options.num_draft_tokens), options.rounds * COMMITTED
    figures = []
    for tokens, kinds in (
        (n, k) for n in options.tokens for k in (("seen", "new"), ("one token",))
    ):
        store = list(islice(cycle(old[:1] if "one token" in kinds else old), tokens))
        texts = {"seen": store[8:], "new": new, "one token": store}
        lives = {kind: list(islice(cycle(texts[kind]), count)) for kind in kinds}
        for case in CASES:
            start = time.perf_counter()
            opened(case, store, vocab_size).close()
            seconds = time.perf_counter() - start
            held = memory(case, store, vocab_size)
            for kind, live in lives.items():
                times = round_times(opened(case, store, vocab_size), live, budget)
                clock, own = ([pair[i] for pair in times] for i in range(2))
                figures.append(
                    {
                        "drafter": case.name,
                        "tokens": tokens,
                        "live_text": kind,
                        "median_us": statistics.median(clock),
                        "p99_us": statistics.quantiles(clock, n=100)[98],
                        "thread_median_us": statistics.median(own),
                        "thread_p99_us": statistics.quantiles(own, n=100)[98],
                        "thread_max_us": max(own),
                        "build_us_per_token": 1e6 * seconds / tokens,
                        "bytes_per_token": held / tokens,
                    }
                )
                print(
                    f"{tokens:>8} tokens, {case.name:<27} {kind:<9}"
                    f"{figures[-1]['median_us']:8.1f} us a round (median), "
                    f"{figures[-1]['thread_p99_us']:7.1f} of the thread's own time (p99), "
                    f"{held / tokens:4.0f} bytes a token"
                )
    write(
        options.json,
        {
            "rounds": options.rounds,
            "committed_per_round": COMMITTED,
            "num_draft_tokens": options.num_draft_tokens,
            "distinct_tokens": {"store": len(old), "new": len(new)},
            "figures": figures,
        },
    )


if __name__ == "__main__":
    main()
