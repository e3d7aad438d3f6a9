"""What the terms of a benchmark report mean."""

from __future__ import annotations

from paceline.workbench.bench.statistics import CONFIDENCE

DEFINITIONS = (
    (
        "tokens per second",
        "Tokens of the answers divided by the seconds of decoding. The prefill of the prompt is "
        "left out; `with prefill` counts it, including that of a draft model.",
    ),
    (
        "speed-up",
        "Tokens per second divided by those of plain decoding on the same prompt, measured "
        "alternately. Over prompts: the geometric mean, so that twice as fast and half as fast "
        f"make 1. Its interval ({CONFIDENCE:.0%}) is Student's, over prompts, and covers both the "
        "spread between prompts and the noise of the runs: what other prompts of this kind would "
        "give in another run. A speed-up above the tokens per round is noise, and the report says "
        "so.",
    ),
    (
        "noise",
        "Plain decoding runs twice in every cycle. Their ratio differs from 1 only by noise, so "
        "its scatter gives that of one run. A method is called slower than plain on a prompt only "
        f"if its speed-up is further below 1 than noise gets in {CONFIDENCE:.0%} of cases. Of "
        "equally fast methods about one prompt in 40 is called slower by chance.",
    ),
    (
        "mean acceptance length",
        "Tokens per round (one target pass), including the correction or bonus token: plain "
        "decoding is 1.00. Rounds without a draft count.",
    ),
    (
        "draft acceptance rate",
        "Accepted tokens divided by all drafted tokens, including those after a rejection. For the "
        "same drafter it falls as drafts get longer.",
    ),
    (
        "acceptance by position, conditional",
        "The share accepted of the draft tokens that were tested at a position. A token is tested "
        "if all before it were accepted. This is the alpha of the cost model.",
    ),
    (
        "acceptance by position, unconditional",
        "The share of all drafts in which the token at this position was accepted, which requires "
        "that all before it were. It cannot rise from one position to the next.",
    ),
    (
        "time",
        "Host seconds. prefill: the prompt through target and draft model; draft: proposing; "
        "target: passes of the target; verify: accepting and rejecting; rest: between them.",
    ),
    (
        "predicted",
        "The result of the cost model: conditional acceptance at each position, the cost of a "
        "draft by its length, and the median cost of a target pass by its number of rows.",
    ),
    (
        "same tokens",
        "Whether the answer had the tokens of plain decoding. A difference is a tie if the two "
        "best logits are so close that rounding between passes of different shapes explains it, "
        "otherwise a fault.",
    ),
    (
        "peak memory",
        "The largest memory of the process at the end of a round. All models of all methods are "
        "loaded at once, so it shows what a method adds, not what it would need alone.",
    ),
)
