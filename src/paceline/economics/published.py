"""Numbers printed in papers, as data that the cost model is checked against.

Values are as printed, so they include the paper's rounding: speed-ups computed from these inputs
may differ from the printed ones by .07. A temperature of 0 is greedy decoding.
"""

from __future__ import annotations

from dataclasses import dataclass

LEVIATHAN = "Leviathan, Kalman, Matias: Fast Inference from Transformers via Speculative Decoding"
LEVIATHAN_URL = "https://arxiv.org/abs/2211.17192"
CHEN = "Chen et al.: Accelerating Large Language Model Decoding with Speculative Sampling"
CHEN_URL = "https://arxiv.org/abs/2302.01318"


@dataclass(frozen=True, slots=True)
class OperationsAndSpeed:
    """A row of Leviathan's table 1: a drafter that costs nothing (c = 0)."""

    acceptance_rate: float
    num_draft_tokens: int
    arithmetic_overhead: float
    speedup: float


LEVIATHAN_TABLE_1 = (
    OperationsAndSpeed(0.6, 2, 1.53, 1.96),
    OperationsAndSpeed(0.7, 3, 1.58, 2.53),
    OperationsAndSpeed(0.8, 2, 1.23, 2.44),
    OperationsAndSpeed(0.8, 5, 1.63, 3.69),
    OperationsAndSpeed(0.9, 2, 1.11, 2.71),
    OperationsAndSpeed(0.9, 10, 1.60, 6.86),
)


@dataclass(frozen=True, slots=True)
class SpeedupRow:
    """A row of Leviathan's table 2: the speed-up that the formula expects, and the measured one.

    The formula is not a bound: some measurements beat it (small) or fall far short of it (large).
    """

    task: str
    draft: str
    temperature: float
    num_draft_tokens: int
    acceptance_rate: float
    cost: float
    expected_speedup: float
    measured_speedup: float


LEVIATHAN_TABLE_2 = (
    SpeedupRow("EnDe", "T5-small 77M", 0, 7, 0.75, 0.02, 3.2, 3.4),
    SpeedupRow("EnDe", "T5-base 250M", 0, 7, 0.80, 0.04, 3.3, 2.8),
    SpeedupRow("EnDe", "T5-large 800M", 0, 7, 0.82, 0.11, 2.5, 1.7),
    SpeedupRow("EnDe", "T5-small 77M", 1, 7, 0.62, 0.02, 2.3, 2.6),
    SpeedupRow("EnDe", "T5-base 250M", 1, 5, 0.68, 0.04, 2.4, 2.4),
    SpeedupRow("EnDe", "T5-large 800M", 1, 3, 0.71, 0.11, 2.0, 1.4),
    SpeedupRow("CNN/DM", "T5-small 77M", 0, 5, 0.65, 0.02, 2.4, 3.1),
    SpeedupRow("CNN/DM", "T5-base 250M", 0, 5, 0.73, 0.04, 2.6, 3.0),
    SpeedupRow("CNN/DM", "T5-large 800M", 0, 3, 0.74, 0.11, 2.0, 2.2),
    SpeedupRow("CNN/DM", "T5-small 77M", 1, 5, 0.53, 0.02, 1.9, 2.3),
    SpeedupRow("CNN/DM", "T5-base 250M", 1, 3, 0.55, 0.04, 1.8, 2.2),
    SpeedupRow("CNN/DM", "T5-large 800M", 1, 3, 0.56, 0.11, 1.6, 1.7),
)
"""Target T5-XXL 11B on one TPU-v4, batch of one."""


@dataclass(frozen=True, slots=True)
class AcceptanceRow:
    """A row of Leviathan's table 3: acceptance rates, greedy and at temperature 1."""

    target: str
    task: str
    draft: str
    greedy: float
    temperature_1: float


LEVIATHAN_TABLE_3 = (
    AcceptanceRow("GPT-like 97M", "LM1B", "unigram", 0.03, 0.03),
    AcceptanceRow("GPT-like 97M", "LM1B", "bigram", 0.05, 0.05),
    AcceptanceRow("GPT-like 97M", "LM1B", "GPT-like 6M", 0.88, 0.89),
    AcceptanceRow("T5-XXL 11B", "EnDe", "unigram", 0.08, 0.07),
    AcceptanceRow("T5-XXL 11B", "EnDe", "bigram", 0.20, 0.19),
    AcceptanceRow("T5-XXL 11B", "EnDe", "T5-small 77M", 0.75, 0.62),
    AcceptanceRow("T5-XXL 11B", "EnDe", "T5-base 250M", 0.80, 0.68),
    AcceptanceRow("T5-XXL 11B", "EnDe", "T5-large 800M", 0.82, 0.71),
    AcceptanceRow("T5-XXL 11B", "CNN/DM", "unigram", 0.13, 0.08),
    AcceptanceRow("T5-XXL 11B", "CNN/DM", "bigram", 0.23, 0.16),
    AcceptanceRow("T5-XXL 11B", "CNN/DM", "T5-small 77M", 0.65, 0.53),
    AcceptanceRow("T5-XXL 11B", "CNN/DM", "T5-base 250M", 0.73, 0.55),
    AcceptanceRow("T5-XXL 11B", "CNN/DM", "T5-large 800M", 0.74, 0.56),
    AcceptanceRow("LaMDA 137B", "dialogue", "LaMDA 100M", 0.61, 0.57),
    AcceptanceRow("LaMDA 137B", "dialogue", "LaMDA 2B", 0.71, 0.71),
    AcceptanceRow("LaMDA 137B", "dialogue", "LaMDA 8B", 0.75, 0.74),
)


@dataclass(frozen=True, slots=True)
class LenienceRow:
    """A row of Leviathan's table 5: acceptance rates on EnDe by lenience l (1 is exact)."""

    draft: str
    by_lenience: tuple[tuple[float, float], ...]


LEVIATHAN_TABLE_5 = (
    LenienceRow("unigram", ((1, 0.07), (0.5, 0.10), (0.3, 0.11), (0.1, 0.16))),
    LenienceRow("bigram", ((1, 0.19), (0.5, 0.23), (0.3, 0.25), (0.1, 0.32))),
    LenienceRow("T5-small 77M", ((1, 0.62), (0.5, 0.71), (0.3, 0.76), (0.1, 0.84))),
    LenienceRow("T5-base 250M", ((1, 0.68), (0.5, 0.80), (0.3, 0.83), (0.1, 0.90))),
)

LEVIATHAN_LENIENT_SPEEDUP_CLAIM = ((1, 2.5), (0.5, 3.1), (0.3, 3.6), (0.1, 5.0))
"""(lenience, speed-up) claimed for T5-small. No draft length reaches these by the formula with the
printed rates: its best are 2.33, 2.94, 3.45 and 4.79, at 7, 9, 10 and 15 tokens."""

LEVIATHAN_LENIENT_COST = 0.015
"""The cost of a T5-small step to the third digit; table 2 rounds it to .02. Inferred: of all costs
in steps of .001 only this one gives those four best values."""


@dataclass(frozen=True, slots=True)
class ChenRow:
    """A row of Chen's table 1. The paper gives no acceptance rates; see `implied_tokens`."""

    task: str
    sampling: str
    milliseconds_per_token: float
    speedup: float


CHEN_TABLE_1 = (
    ChenRow("XSum", "nucleus, p = .8", 7.52, 1.92),
    ChenRow("XSum", "greedy", 7.00, 2.01),
    ChenRow("HumanEval", "nucleus, p = .95, temperature .8", 5.73, 2.46),
)
"""Target Chinchilla 70B, draft 4B. XSum gains most at 3 draft tokens; the table has 4."""

CHEN_NUM_DRAFT_TOKENS = 4
CHEN_TARGET_MILLISECONDS = 14.1
CHEN_DRAFT_MILLISECONDS = 1.8
