"""Audits over HTTP: right servers, lossy ones, wrong ones, and servers that tell too little."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from paceline.controllers.fixed import FixedController
from paceline.drafters.model import ModelDrafter
from paceline.errors import InvalidInput
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.audit import RemoteSettings, SamplingSettings, Verdict, audit_endpoints
from paceline.workbench.audit.scripts import Parts
from paceline.workbench.workload import Item
from tests.workbench.audit.planted import FAULTS
from tests.workbench.audit.servers import Server, endpoint, table

ITEMS = [Item("1", "red green"), Item("2", "blue gold blue"), Item("3", "gold")]
HALF = TableTarget(torch.tensor([0.5, 0.5], dtype=torch.float64))
RIGHT = Parts(ModelDrafter(HALF), TokenVerifier(), FixedController(3))
SETTINGS = RemoteSettings(
    max_tokens=12, sampling=SamplingSettings(effect=0.3, max_tokens=6), concurrency=2
)


def audit(candidate: Any, baseline: Any = None, settings: RemoteSettings = SETTINGS, **how: Any):
    with endpoint(candidate, **how) as one, endpoint(baseline or Server(), **how) as other:
        return audit_endpoints(one, other, ITEMS, settings)


def findings(found):
    return {finding.check: finding for finding in found.findings}


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_a_server_that_speculates_right_passes(api):
    found = audit(Server(RIGHT), api=api)
    assert found.verdict is Verdict.PASS
    by_check = findings(found)
    assert by_check["greedy equality"].numbers["largest_difference_of_a_log_probability"] < 1e-9
    assert by_check["log-probabilities"].verdict is Verdict.PASS
    assert by_check["baseline against itself"].numbers["differing"] == 0
    assert by_check["sampled answers"].numbers["power"] >= 0.9
    assert by_check["same seed, same text"].numbers["same"] == len(ITEMS)
    assert found.subject["model"] == "toy"


@pytest.mark.statistical
@pytest.mark.parametrize(
    "name", ["the correction drawn from p", "match and redraw", "a drawn token is dropped"]
)
def test_a_lossy_server_is_found(name):
    """250 answers a prompt and side, seed 0, false-alarm rate .001."""
    settings = replace(SETTINGS, sampling=SamplingSettings(samples=250, max_tokens=8))
    by_check = findings(audit(Server(FAULTS[name], draft=table(2.0, seed=1)), settings=settings))
    assert by_check["sampled answers"].verdict is Verdict.FAULT


def test_a_server_with_another_model_parts_and_that_is_a_fault():
    found = audit(Server(law=table(seed=5)))
    greedy = findings(found)["greedy equality"]
    assert greedy.verdict is Verdict.FAULT
    row = next(row for row in greedy.evidence if row["result"] == "fault")
    assert row["gap"] > 0.25
    assert found.verdict is Verdict.FAULT


def near_tie() -> torch.Tensor:
    """Behind the first word the second and third are as good as equal."""
    law = table()
    law[0] = torch.tensor([0.1, 0.4, 0.3999, 0.1001])
    law[1] = law[2] = law[3] = torch.tensor([0.7, 0.1, 0.1, 0.1])
    return law


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_near_ties_are_told_from_faults_by_the_baseline_s_log_probabilities(api):
    law = near_tie()
    other = law.clone()
    other[0] = law[0][[0, 2, 1, 3]]
    greedy = replace(SETTINGS, options={"temperature": 0.0})
    found = audit(Server(law=other), Server(law=law), greedy, api=api)
    assert found.verdict is Verdict.TIE_LIMITED
    assert len(found.findings) == 3
    (row, *_) = [row for row in findings(found)["greedy equality"].evidence if row["gap"]]
    assert row["gap"] == pytest.approx(0.00025, abs=1e-5)


def test_without_log_probabilities_a_difference_is_inconclusive_and_equality_a_pass():
    silent = Server(logprobs="none")
    greedy = replace(SETTINGS, options={"temperature": 0.0})
    same = audit(Server(RIGHT), silent, greedy)
    assert same.verdict is Verdict.PASS
    apart = audit(Server(law=table(seed=5)), silent, greedy)
    assert apart.verdict is Verdict.INCONCLUSIVE
    assert "gives no log-probabilities" in findings(apart)["greedy equality"].summary


def test_log_probabilities_of_zero_are_not_believed():
    greedy = replace(SETTINGS, options={"temperature": 0.0})
    apart = audit(Server(law=table(seed=5)), Server(logprobs="zero"), greedy)
    assert apart.verdict is Verdict.INCONCLUSIVE
    told = audit(Server(RIGHT, logprobs="zero"), None, greedy)
    assert findings(told)["greedy equality"].verdict is Verdict.PASS
    probabilities = findings(told)["log-probabilities"]
    assert probabilities.verdict is Verdict.FAULT
    assert probabilities.numbers["reported_0"] == 12 * len(ITEMS)


def test_too_many_tokens_are_a_fault():
    class Overshoots(Server):
        def __call__(self, method, path, body):
            return super().__call__(
                method, path, body and {**body, "max_tokens": body["max_tokens"] + 1}
            )

    greedy = replace(SETTINGS, options={"temperature": 0.0})
    found = audit(Overshoots(), None, greedy)
    assert found.verdict is Verdict.FAULT


def test_texts_are_asked_for_without_log_probabilities_first():
    """Some servers do not speculate where log-probabilities are asked for."""
    server = Server(RIGHT)
    audit(server, None, replace(SETTINGS, options={"temperature": 0.0}))
    assert ["logprobs" in body for body in server.asked] == [False, True] * len(ITEMS)


def test_sampled_answers_have_seeds_of_their_own():
    one, other = Server(RIGHT), Server()
    settings = replace(SETTINGS, sampling=SamplingSettings(samples=5, max_tokens=2))
    found = audit(one, other, settings)
    seeds = [
        body["seed"]
        for server in (one, other)
        for body in server.asked
        if body["temperature"] and body["max_tokens"] == 2
    ]
    assert len(seeds) == len(set(seeds)) == 2 * 5 * len(ITEMS)
    assert findings(found)["sampled answers"].verdict is Verdict.INCONCLUSIVE


def test_a_baseline_that_does_not_sample_is_no_pass():
    stuck = Server(change=lambda text, body: " red")
    found = audit(stuck, stuck)
    assert found.verdict is Verdict.INCONCLUSIVE
    assert "does not sample" in findings(found)["sampled answers"].summary


def test_a_baseline_that_changes_on_the_way_says_nothing_of_the_other():
    count = [0]

    def drift(text, body):
        count[0] += bool(body["temperature"])
        return " gold gold" if count[0] > 130 else text

    settings = replace(SETTINGS, sampling=SamplingSettings(samples=80, max_tokens=6))
    found = audit(Server(), Server(change=drift), settings)
    assert findings(found)["sampled answers"].verdict is Verdict.INCONCLUSIVE
    assert "first and second half differ" in findings(found)["sampled answers"].summary


def test_a_baseline_that_is_not_deterministic_is_told():
    count = [0]

    def waver(text, body):
        count[0] += 1
        return text + (" red" if count[0] % 5 == 2 else "")

    found = audit(Server(), Server(change=waver), replace(SETTINGS, options={"temperature": 0.0}))
    itself = findings(found)["baseline against itself"]
    assert itself.verdict is None
    assert "not deterministic" in itself.summary


def test_messages_need_chat():
    items = [Item("1", ({"role": "user", "content": "red"},), source="f, line 1")]
    with endpoint(Server()) as one, pytest.raises(InvalidInput, match=r"f, line 1: .* --api chat"):
        audit_endpoints(one, one, items, SETTINGS)
    with endpoint(Server(), api="chat") as one:
        greedy = replace(SETTINGS, options={"temperature": 0.0})
        assert audit_endpoints(one, one, items, greedy).verdict is Verdict.PASS
