"""`structured_outputs`: every answer has its form, and drafts change none."""

from __future__ import annotations

import json
from typing import Any

import pytest

import paceline
from paceline.errors import InvalidInput
from tests.tiny_folders import model, tokenizer

SCHEMA = {
    "type": "object",
    "properties": {
        "the": {"enum": ["stop", "END"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
        "list": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2},
    },
    "required": ["the", "count", "list"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def tiny() -> Any:
    words = tokenizer()
    return paceline.load(
        model(eos_token_id=words.eos_token_id, max_position_embeddings=1024), words
    )


DRAFTERS: list[dict[str, Any]] = [
    {"drafter": "ngram"},
    {"drafter": "predicted-output", "drafter_options": {"prediction": '{"the": "END", "cou'}},
    {"drafter": "recycling"},
    {"drafter": "lookahead"},
]


@pytest.mark.parametrize("drafting", DRAFTERS, ids=lambda given: given["drafter"])
def test_answers_have_their_form_whatever_is_drafted(tiny: Any, drafting: dict[str, Any]) -> None:
    form = {"json": SCHEMA}
    options = {"max_tokens": 600, "structured_outputs": form}
    plain = tiny.generate("the stop", drafter="none", **options)
    assert plain.finish_reason == "stop"
    assert json.loads(plain.text).keys() == {"the", "count", "list"}
    drafted = tiny.generate("the stop", num_draft_tokens=4, **drafting, **options)
    assert drafted.token_ids == plain.token_ids
    assert drafted.metrics.counts.rounds < len(drafted.token_ids)


def test_a_draft_model_drafts_within_the_form(tiny: Any) -> None:
    """Its own law is restricted too, so that with itself as the draft model all is accepted."""
    form = {"regex": "[a-f]{10,12}"}
    options = {"max_tokens": 40, "structured_outputs": form, "temperature": 1.0, "seed": 4}
    found = tiny.generate(
        "the", draft_model=tiny, drafter="model", num_draft_tokens=3, verify="token", **options
    )
    assert set(found.text) <= set("abcdef")
    assert found.spec["draft_acceptance_rate"] == 1.0


def test_samples_of_a_choice_are_among_it(tiny: Any) -> None:
    texts = ["the END", "stop.", "好"]
    for answer in tiny.generate(
        "the", n=8, structured_outputs={"choice": texts}, temperature=1.0, seed=1
    ):
        assert answer.text in texts
        assert answer.finish_reason == "stop"


def test_what_does_not_go_with_a_form_is_refused(tiny: Any) -> None:
    with pytest.raises(InvalidInput, match="ignore_eos"):
        tiny.generate("the", structured_outputs={"json": SCHEMA}, ignore_eos=True)
    with pytest.raises(InvalidInput, match="structured_outputs"):
        tiny.generate("the", structured_outputs={"json": {"type": "nothing"}})
