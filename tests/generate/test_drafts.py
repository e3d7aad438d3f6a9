"""What a draft model is made of by default: by fixed tables of costs, and on tiny models."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from paceline.core.target import Need, TargetInfo
from paceline.errors import InvalidInput
from paceline.generate import drafts
from paceline.generate.api import load_draft
from paceline.generate.choice import Choice
from paceline.generate.drafts import (
    LEAVES,
    DraftForm,
    DraftShape,
    cheapest_form,
    default_choice,
    describe,
    product_costs,
)
from paceline.generate.parts import named_rule
from tests import tiny_folders
from tests.tiny_tokenizers import byte_level, sentencepiece

QWEN = DraftShape(vocab_size=151_936, hidden_size=896, num_weights=358_000_000)
SMOLLM2 = DraftShape(vocab_size=49_152, hidden_size=576, num_weights=106_000_000)
TINY = DraftShape(vocab_size=32_000, hidden_size=64, num_weights=1_000_000)
LOOPS: dict[Any, float] = {"int4": 0.36, "int8": 1.0}


@pytest.mark.parametrize(
    ("shape", "costs", "expected"),
    [
        (QWEN, LOOPS, DraftForm("int4", 48_000, 151_936)),
        (QWEN, {"int4": 1.3, "int8": 0.6}, DraftForm("int8", 48_000, 151_936)),
        (QWEN, {"int4": 0.9, "int8": 1.1}, DraftForm("auto", 48_000, 151_936)),
        (QWEN, {}, DraftForm("auto", 48_000, 151_936)),
        (SMOLLM2, LOOPS, DraftForm("int4", None, 49_152)),
        (TINY, LOOPS, DraftForm("auto", None, 32_000)),
    ],
)
def test_by_costs_and_sizes(shape: DraftShape, costs: Any, expected: DraftForm) -> None:
    assert cheapest_form(shape, costs) == expected


def test_what_was_said_holds() -> None:
    assert cheapest_form(QWEN, LOOPS, storage="plain").storage == "plain"
    assert cheapest_form(QWEN, LOOPS, head_tokens="all").head_tokens is None
    assert cheapest_form(QWEN, LOOPS, head_tokens=32_000).head_tokens == 32_000
    assert cheapest_form(TINY, LOOPS, storage="int4", head_tokens=8) == DraftForm("int4", 8, 32_000)
    assert cheapest_form(TINY, LOOPS, head_tokens=10**6).head_tokens == 32_000
    for wrong in (0, -1, 2.5, True, "most"):
        with pytest.raises(InvalidInput, match="draft_head_tokens must be"):
            cheapest_form(QWEN, LOOPS, head_tokens=wrong)  # type: ignore[arg-type]


def test_a_model_that_the_lean_decoder_does_not_take_stays_as_it_is() -> None:
    other = DraftShape(151_936, 896, 358_000_000, is_lean=False)
    assert cheapest_form(other, LOOPS) == DraftForm("auto", None, 151_936)


def test_ids_that_do_not_follow_frequency_are_not_cut() -> None:
    unordered = DraftShape(151_936, 896, 358_000_000, is_ordered=False)
    assert cheapest_form(unordered, LOOPS) == DraftForm("int4", None, 151_936)


def test_the_shape_by_a_configuration_and_a_tokenizer() -> None:
    config = SimpleNamespace(
        vocab_size=151_936, hidden_size=896, num_hidden_layers=24, intermediate_size=4864
    )
    for tokenizer in (byte_level(), sentencepiece()):
        shape = DraftShape.of(config, tokenizer, is_lean=True)
        assert shape.num_weights == 24 * 896 * (4 * 896 + 3 * 4864)
        assert (shape.is_lean, shape.is_ordered) == (True, True)
    assert not DraftShape.of(config, None, is_lean=True).is_ordered


def test_costs_are_measured_once_and_not_for_small_models(monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[None] = []

    def table() -> Any:
        measured.append(None)
        return LOOPS

    monkeypatch.setattr(drafts, "product_costs", table)
    assert cheapest_form(TINY).storage == "auto"
    assert cheapest_form(QWEN, storage="auto").storage == "auto"
    assert not measured
    assert cheapest_form(QWEN).storage == "int4"
    assert len(measured) == 1


@pytest.mark.parametrize("works", [True, False])
def test_products_are_timed_where_the_loops_do_not_run(
    works: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("paceline.kernels.vnni.is_available", lambda: works)
    monkeypatch.setattr(drafts, "measured_costs", lambda: {"int8": 0.5})
    expected = drafts.LOOP_COSTS if works else {"int8": 0.5}
    product_costs.cache_clear()
    try:
        assert product_costs() == expected
    finally:
        product_costs.cache_clear()


def test_how_products_are_timed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sweep by a scripted clock: int4 in a quarter of the time, but for one slow sweep."""
    took = {"auto": 4.0, "int8": 2.0, "int4": 1.0}
    now, kinds = [0.0], iter(["auto", "int8", "int4"] * 8)
    ends = [False]

    def tick() -> float:
        if ends[0]:
            now[0] += took[next(kinds)]
        ends[0] = not ends[0]
        return now[0]

    monkeypatch.setattr(drafts, "perf_counter", tick)
    monkeypatch.setattr(drafts, "make_linear", lambda weight, bias, kind: lambda x: x)
    assert drafts.measured_costs() == {"int8": 0.5, "int4": 0.25}


def info(*gives: str) -> TargetInfo:
    return TargetInfo("toy", 8, gives=frozenset(gives))


CHAIN = Choice("model", {}, "small")


@pytest.mark.parametrize(
    ("changed", "is_tree"),
    [
        ({}, True),
        ({"controller": "auto", "num_draft_tokens": 8}, True),
        ({"num_draft_tokens": "auto"}, True),
        ({"target": None}, True),
        ({"rule": "tree"}, True),
        ({"rule": "coupling"}, True),
        ({"rule": "token"}, False),
        ({"rule": "block"}, False),
        ({"num_draft_tokens": 8}, False),
        ({"controller": "fixed"}, False),
        ({"target": info()}, False),
        ({"draft": info()}, False),
        ({"choice": CHAIN._replace(settings={"min_confidence": 0.4})}, False),
        ({"choice": Choice("universal", {}, "small")}, False),
    ],
    ids=str,
)
def test_the_tree_with_leaves(changed: dict[str, Any], is_tree: bool) -> None:
    given: dict[str, Any] = {
        "choice": CHAIN,
        "controller": None,
        "num_draft_tokens": None,
        "target": info(Need.TREE),
        "draft": info(Need.TREE),
        **changed,
    }
    choice, rule = given.pop("choice"), named_rule(given.pop("rule", None))
    found = default_choice(choice, rule=rule, **given)
    assert found == (Choice("tree", dict(LEAVES), "small") if is_tree else choice)


def test_a_line_says_what_was_chosen() -> None:
    tree = Choice("tree", dict(LEAVES), "small")
    assert describe(DraftForm("int4", 48_000, 151_936), tree) == (
        "int4, 48,000 of 151,936 head tokens; tree of one path with leaves"
    )
    assert describe(None, CHAIN) == "as it was loaded; drafter model"
    assert describe(DraftForm("packed", None, 320), CHAIN) == (
        "packed weights, all 320 head tokens; drafter model"
    )


def test_a_tiny_model_stays_as_it_is_and_can_be_made_coarse(tmp_path: Path) -> None:
    folder = tiny_folders.save(tmp_path)
    left = load_draft(folder)
    assert left.form == DraftForm("auto", None, tiny_folders.PADDED_VOCAB)
    assert left.decoder.text_head() is None
    coarse = load_draft(folder, "int8", 64)
    assert coarse.form == DraftForm("int8", 64, tiny_folders.PADDED_VOCAB)
    assert coarse.decoder.text_head() is not None
    assert repr(coarse) == f"<LanguageModel {coarse.name}: int8, 64 of 320 head tokens>"
    with pytest.raises(InvalidInput, match="storage must be one of"):
        load_draft(folder, "int2")  # type: ignore[arg-type]
