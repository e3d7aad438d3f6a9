"""The settings of each engine, in its own names."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from itertools import pairwise

import pytest

from paceline.errors import InvalidInput, UnknownName
from paceline.models.known import KNOWN, place
from paceline.workbench.plan.export import ENGINES, Choice, export, notes
from paceline.workbench.workload.methods import DraftSource, HeadForm

MODEL = Choice(
    "T",
    "model",
    4,
    draft=DraftSource("D", "int4", 32_000),
    by_batch=[(1, 7, 4), (8, 15, 2), (16, 10_000, 0)],
)
NGRAM = Choice("T", "ngram", 8, settings={"max_ngram": 3, "min_ngram": 2})
PLAIN = Choice("T", "none", 0)


def flags(line: str) -> dict[str, str]:
    words = shlex.split(line)
    return {a: b for a, b in pairwise(words) if a.startswith("-")}


def test_a_head_is_named_with_the_form_in_which_it_was_loaded() -> None:
    form = HeadForm("int8", 4000)
    found = export("paceline", Choice("T", "medusa", 3, settings={"head": "h"}, head=form))
    expected = "paceline generate --model T --drafter medusa -k 3 --draft-storage int8"
    assert found.startswith(f"{expected} --draft-head-tokens 4000 --drafter-option")


def test_transformers_takes_arguments_of_generate() -> None:
    assert json.loads(export("transformers", MODEL)) == {
        "assistant_model": "D",
        "num_assistant_tokens": 4,
        "num_assistant_tokens_schedule": "constant",
        "assistant_confidence_threshold": 0.0,
    }
    assert json.loads(export("transformers", NGRAM)) == {
        "prompt_lookup_num_tokens": 8,
        "max_matching_ngram_size": 3,
    }


def test_vllm_takes_json_with_a_table_by_batch() -> None:
    found = json.loads(flags(export("vllm", MODEL))["--speculative-config"])
    assert found == {
        "method": "draft_model",
        "model": "D",
        "num_speculative_tokens": 4,
        "num_speculative_tokens_per_batch_size": [[1, 7, 4], [8, 15, 2], [16, 10_000, 0]],
    }
    assert json.loads(flags(export("vllm", NGRAM))["--speculative-config"]) == {
        "method": "ngram",
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 3,
        "num_speculative_tokens": 8,
    }


def test_sglang_counts_the_root_among_its_draft_tokens() -> None:
    found = flags(export("sglang", MODEL))
    assert found["--speculative-algorithm"] == "STANDALONE"
    assert found["--speculative-draft-model-path"] == "D"
    assert (found["--speculative-num-steps"], found["--speculative-num-draft-tokens"]) == ("4", "5")
    assert flags(export("sglang", NGRAM))["--speculative-algorithm"] == "NGRAM"


def test_llama_cpp() -> None:
    found = flags(export("llama.cpp", MODEL))
    assert (found["-md"], found["--spec-type"], found["--spec-draft-n-max"]) == (
        "D",
        "draft-simple",
        "4",
    )
    found = flags(export("llama.cpp", NGRAM))
    assert (found["--spec-ngram-simple-size-n"], found["--spec-ngram-simple-size-m"]) == ("3", "8")


def test_tensorrt_llm_stops_where_it_no_longer_pays() -> None:
    assert export("tensorrt-llm", MODEL).splitlines() == [
        "speculative_config:",
        "  decoding_type: Draft_Target",
        "  speculative_model: D",
        "  max_draft_len: 4",
        "  max_concurrency: 15",
    ]
    assert "decoding_type: NGram" in export("tensorrt-llm", NGRAM)


def test_paceline_drafts_as_was_measured() -> None:
    found = flags(export("paceline", MODEL))
    assert (found["--draft-model"], found["--draft-storage"]) == ("D", "int4")
    assert (found["--draft-head-tokens"], found["-k"]) == ("32000", "4")


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_decoding_names_no_drafter(engine: str) -> None:
    told = export(engine, PLAIN)
    assert "spec" not in told or told == "speculative_config: null"


@pytest.mark.parametrize("engine", sorted(ENGINES.keys() - {"paceline"}))
def test_what_an_engine_does_not_have(engine: str) -> None:
    with pytest.raises(InvalidInput, match="no drafter like 'lookahead'"):
        export(engine, Choice("T", "lookahead", 4))


def test_an_unknown_engine() -> None:
    with pytest.raises(UnknownName, match="did you mean 'vllm'"):
        export("vlm", PLAIN)


KNOWN_PAIR = Choice(
    "qwen2.5-coder-1.5b", "model", 4, draft=DraftSource("qwen2.5-coder-0.5b", "int4", 48_000)
)


@pytest.mark.parametrize("engine", sorted(ENGINES.keys() - {"paceline"}))
def test_models_have_names_that_the_engine_knows(engine: str) -> None:
    """On the hub, or for llama.cpp the file that was fetched."""
    text = export(engine, KNOWN_PAIR)
    words = re.split(r"[\s\"',:]+", text)
    assert not {"qwen2.5-coder-1.5b", "qwen2.5-coder-0.5b"} & set(words)
    if engine == "llama.cpp":
        assert {str(place(name)) for name in (KNOWN_PAIR.target, "qwen2.5-coder-0.5b")} <= set(
            words
        )
    else:
        assert "Qwen/Qwen2.5-Coder-0.5B-Instruct" in text
    assert "qwen2.5-coder-1.5b" in export("paceline", KNOWN_PAIR)


def test_every_known_model_has_a_name_on_the_hub() -> None:
    assert all("/" in model.hub_id for model in KNOWN.values())


def test_another_engine_is_told_that_its_draft_takes_longer() -> None:
    (note,) = notes("vllm", KNOWN_PAIR)
    assert "weights in int4 and an output head of 48,000 tokens" in note
    assert notes("paceline", KNOWN_PAIR) == []
    assert notes("vllm", NGRAM) == []
    assert notes("vllm", replace(KNOWN_PAIR, draft=DraftSource("D", "plain", "all"))) == []
    assert "in a cheap form" in notes("vllm", replace(KNOWN_PAIR, draft=DraftSource("D")))[0]


@pytest.mark.parametrize("engine", sorted(ENGINES))
def test_auto_becomes_a_number_where_the_engine_takes_one(engine: str) -> None:
    choice = replace(NGRAM, num_draft_tokens="auto", typical_length=6)
    text = export(engine, choice)
    if engine == "paceline":
        assert "-k auto" in text
        assert notes(engine, choice) == []
    else:
        assert "auto" not in text
        assert re.search(r"\b[67]\b", text)  # SGLang counts the root too
        assert "was not measured as a fixed one" in notes(engine, choice)[0]
