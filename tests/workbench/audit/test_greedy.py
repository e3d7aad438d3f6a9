"""Greedy equality: same, tie, fault, and nothing to see, each on a target made for it."""

from __future__ import annotations

import torch

from paceline.testing.table import TableTarget
from paceline.workbench.audit.greedy import check_greedy
from paceline.workbench.audit.verdicts import Verdict
from tests.workbench.audit.conftest import PassesDiffer, cycle, over

NGRAM = {"drafter": "ngram", "num_draft_tokens": 3}


def test_the_same_tokens_pass(prompts):
    finding = check_greedy(over(TableTarget(cycle(0.7))), prompts, NGRAM, max_tokens=12)
    assert finding.verdict is Verdict.PASS
    assert [row["result"] for row in finding.evidence] == ["same", "same"]
    assert finding.numbers["tokens"] == 24
    assert finding.numbers["accepted"] > 10


def near_tie():
    """Behind token 1, tokens 2 and 0 are as good as equal."""
    rows = cycle(0.7)
    rows[1] = torch.tensor([0.4, 0.1, 0.4 + 1e-7, 0.1])
    return rows


def test_a_near_tie_that_rounding_decides_is_a_tie(prompts):
    model = over(PassesDiffer(near_tie(), 1e-6))
    finding = check_greedy(model, prompts, NGRAM, max_tokens=12)
    assert finding.verdict is Verdict.TIE_LIMITED
    row = next(row for row in finding.evidence if row["result"] == "tie")
    assert row["gap"] < 1e-6
    assert (row["plain"], row["speculative"]) == ("[2]", "[0]")


def test_a_pass_that_is_off_is_a_fault(prompts):
    finding = check_greedy(over(PassesDiffer(cycle(0.4), 0.8)), prompts, NGRAM, max_tokens=12)
    assert finding.verdict is Verdict.FAULT
    row = next(row for row in finding.evidence if row["result"] == "fault")
    assert row["deviation"] > row["tolerance"]
    assert f"first: prompt {row['prompt']}, token {row['position']}" in finding.summary


def test_without_an_accepted_draft_token_nothing_is_proved(prompts):
    options = {"drafter": "none", "num_draft_tokens": 0}
    finding = check_greedy(over(TableTarget(cycle(0.7))), prompts, options, max_tokens=4)
    assert finding.verdict is Verdict.INCONCLUSIVE
    assert "nothing was tested" in finding.summary
