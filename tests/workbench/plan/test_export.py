"""The settings of each engine, in its own names."""

from __future__ import annotations

import json
import shlex
from itertools import pairwise

import pytest

from paceline.errors import InvalidInput, UnknownName
from paceline.workbench.plan.export import ENGINES, Choice, export
from paceline.workbench.workload.methods import DraftSource

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
