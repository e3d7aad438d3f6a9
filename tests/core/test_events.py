"""The stream of events and its JSON form."""

from __future__ import annotations

import json
import math

import torch

from paceline.core.events import Finished, FinishReason, Prefilled, Round, to_json
from paceline.drafters.ngram import NgramDrafter
from paceline.testing.table import TableTarget
from tests.rigged import markov, run


def test_the_stream_is_one_prefill_rounds_by_number_and_one_end() -> None:
    found = run(markov(6, 0), (1, 2), NgramDrafter(), max_tokens=9)
    first, *rounds, last = found.events
    assert isinstance(first, Prefilled)
    assert first.num_prompt_tokens == 2
    assert [r.number for r in rounds if isinstance(r, Round)] == list(range(1, len(rounds) + 1))
    assert last == Finished(id=0, reason=FinishReason.LENGTH, num_tokens=9)
    for round_ in found.rounds:
        assert 0 <= round_.num_accepted_tokens <= round_.num_draft_tokens
        assert len(round_.tokens) - round_.num_accepted_tokens in (0, 1)
        for seconds in (round_.draft_seconds, round_.target_seconds, round_.verify_seconds):
            assert seconds >= 0


def test_json_holds_plain_values_and_leaves_tensors_out() -> None:
    model = TableTarget(torch.tensor([0.5, 0.0, 0.5], dtype=torch.float64))
    found = run(model, (0,), max_tokens=2, keep_logits=True, keep_scores=True, logprobs=3)
    plain = [json.loads(json.dumps(to_json(event), allow_nan=False)) for event in found.events]
    assert [event["event"] for event in plain] == ["prefilled", "round", "round", "finished"]
    assert plain[1]["tokens"] == [0]
    assert "logits" not in plain[1]
    assert "scores" not in plain[1]
    assert plain[1]["logprobs"] == [math.log(0.5)]
    # A token that cannot come has no finite log-probability; JSON has no infinity.
    assert plain[1]["top_logprobs"] == [[[0, math.log(0.5)], [2, math.log(0.5)], [1, None]]]
    assert plain[3] == {"event": "finished", "id": 0, "reason": "length", "num_tokens": 2}
    assert type(to_json(found.events[-1])["reason"]) is str


def test_json_leaves_out_what_was_not_asked_for() -> None:
    found = run(markov(6, 0), (1, 2), max_tokens=1)
    assert {"logits", "scores", "logprobs", "top_logprobs"}.isdisjoint(to_json(found.rounds[0]))
