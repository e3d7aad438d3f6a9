"""What the terms of a benchmark report mean."""

from __future__ import annotations

from paceline.workbench.bench.statistics import CONFIDENCE

DEFINITIONS = (
    (
        "tokens per second",
        "Tokens of the answers over the seconds of decoding. The prefill of the prompt is left "
        "out; `with prefill` counts it, that of a draft model too.",
    ),
    (
        "speed-up",
        "Tokens per second over those of plain decoding on the same prompt, in the same program, "
        "in turns. Over prompts: the geometric mean, so that twice as fast and half as fast make "
        f"1. Its interval ({CONFIDENCE:.0%}) is Student's, over prompts, and holds both the spread "
        "between prompts and the noise of the runs: what other prompts of this kind would show in "
        "another run. A speed-up above the tokens a round is noise, and the report says so.",
    ),
    (
        "noise",
        "Plain decoding runs twice in every cycle. The ratio of the two is 1 but for noise; its "
        "scatter gives that of one run. A method is called slower than plain on a prompt only if "
        f"its speed-up there is below 1 by more than noise does in {CONFIDENCE:.0%} of cases. Of "
        "equally fast methods about one prompt in 40 is called slower by chance.",
    ),
    (
        "mean acceptance length",
        "Tokens a round, which is a target pass, with the correction or bonus token: plain "
        "decoding is 1.00. Rounds without a draft count.",
    ),
    (
        "draft acceptance rate",
        "Accepted over all drafted tokens, those after a rejection included. It falls as drafts "
        "get longer, for the same drafter.",
    ),
    (
        "acceptance by position, conditional",
        "Of the draft tokens at a position that were tested, the share accepted: tested are those "
        "with everything before them accepted. This is alpha of the cost model.",
    ),
    (
        "acceptance by position, unconditional",
        "Of all drafts, the share in which the token at this position was accepted, which needs "
        "all before it accepted. It cannot rise from one position to the next.",
    ),
    (
        "time",
        "Host seconds. prefill: the prompt through target and draft model; draft: proposing; "
        "target: passes of the target; verify: accepting and rejecting; rest: between them.",
    ),
    (
        "predicted",
        "What the cost model gives: conditional acceptance at each position, the price of a draft "
        "by its length, and the median price of a target pass by its number of rows.",
    ),
    (
        "same tokens",
        "Whether the answer had the tokens of plain decoding. A difference is a tie where the two "
        "best logits are so close that rounding between passes of different shapes explains it, "
        "else a fault.",
    ),
    (
        "peak memory",
        "The most that the process held at the end of a round. All models of all methods are "
        "loaded at once, so it says what a method adds, not what it would need alone.",
    ),
)
