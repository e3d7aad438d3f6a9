"""`generate` with `speculate` against `generate` without, on tiny models in float32."""

from __future__ import annotations

import copy
import inspect
from pathlib import Path
from typing import Any

import pytest
import torch

import paceline
from paceline.controllers.fixed import FixedController
from paceline.core.events import Finished, Round
from paceline.core.target import TargetInfo
from paceline.generate import tokenizers
from paceline.integrations.huggingface import SpeculativeOutput, speculate
from paceline.targets.cached import CachedTarget
from paceline.targets.hf.decoder import HFDecoder
from tests import tiny_folders
from tests.integrations.huggingface.doors import (
    DRAFTERS,
    REPETITIVE,
    answer,
    ids,
    oracle_of,
    padded,
    prompts,
    same,
)
from tests.rigged import Line, flip, ragged
from tests.tiny_models import VOCAB, build, tiny, tokens_of
from tests.tiny_tokenizers import byte_level, sentencepiece

KINDS = ("llama", "gpt2", "qwen2")


# ---------------------------------------------------------------- greedy


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_tokens_are_those_of_generate(kind: str, drafter: str) -> None:
    model = tiny(kind)
    for prompt in [(7,), REPETITIVE]:
        plain = answer(model, prompt, 14)
        for k in range(9):
            speculation = speculate(num_draft_tokens=k, **DRAFTERS[drafter](kind))
            found = answer(model, prompt, 14, custom_generate=speculation)
            assert found == plain, (prompt, k)


@pytest.mark.parametrize("j", range(9))
def test_a_draft_may_go_wrong_anywhere(j: int) -> None:
    model, prompt = tiny("llama"), (7,)
    text = (*prompt, *answer(model, prompt, 20))
    for drafter in (flip(text, VOCAB, j), ragged(text, VOCAB, [j, 0, 3])):
        same(
            model,
            {"drafter": drafter, "num_draft_tokens": 8},
            input_ids=ids(prompt),
            max_new_tokens=20,
        )


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
def test_the_answer_has_exactly_max_new_tokens(length: int) -> None:
    model = tiny("gpt2")
    for k in range(1, 9):
        for drafter in ({"drafter": "ngram"}, {"drafter": oracle_of(model, REPETITIVE)}):
            found = same(
                model,
                {**drafter, "num_draft_tokens": k},
                input_ids=ids(REPETITIVE),
                max_new_tokens=length,
            )
            assert found.shape == (1, len(REPETITIVE) + length)


def test_max_length_and_the_default_length_count_as_in_generate() -> None:
    model = tiny("llama")
    same(model, input_ids=ids(REPETITIVE), max_length=len(REPETITIVE) + 3)
    with pytest.warns(UserWarning, match="model-agnostic default"):
        same(model, input_ids=ids(REPETITIVE))


@pytest.mark.parametrize("offset", range(10))
def test_nothing_comes_behind_an_end_token(offset: int) -> None:
    model = tiny("llama")
    plain = answer(model, REPETITIVE, 12)
    eos = plain[offset]
    drafter = oracle_of(model, REPETITIVE)
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 12}
    for k in (3, 8):
        for end in (eos, [1, eos, plain[-1]]):
            found = same(
                model, {"drafter": drafter, "num_draft_tokens": k}, eos_token_id=end, **call
            )
            ends = {end} if isinstance(end, int) else set(end)
            first = next(i for i, token in enumerate(plain) if token in ends)
            assert found.shape[1] == len(REPETITIVE) + first + 1


def test_end_tokens_of_the_models_own_config_count() -> None:
    model = build("qwen2")
    model.generation_config.eos_token_id = [answer(model, REPETITIVE, 12)[5], 60]
    found = same(model, input_ids=ids(REPETITIVE), max_new_tokens=12)
    assert found.shape[1] < len(REPETITIVE) + 12


def test_other_dtypes_give_the_tokens_of_decoding_without_a_draft() -> None:
    model = build("llama").to(torch.bfloat16)
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 12, "output_logits": True}
    outputs = [
        model.generate(
            **call,
            return_dict_in_generate=True,
            custom_generate=speculate(drafter, num_draft_tokens=3),
        )
        for drafter in ("none", "ngram")
    ]
    plain, found = (output.sequences[0].tolist() for output in outputs)
    differ = [i for i, (a, b) in enumerate(zip(plain, found, strict=True)) if a != b]
    if differ:  # only where bfloat16 cannot tell the two best apart
        best = outputs[0].logits[differ[0] - len(REPETITIVE)][0].topk(2).values
        assert float(best[0] - best[1]) <= 2**-6 * float(best[0].abs())
    assert outputs[0].logits[0].dtype == torch.float32


# ---------------------------------------------------------------- limits of models


def test_decoding_goes_on_to_the_very_end_of_learned_positions() -> None:
    model = build("gpt2", n_positions=32)
    for prompt in (REPETITIVE, (7,)):
        for drafter in (oracle_of(model, prompt, 32 - len(prompt)), "ngram", "none"):
            found = same(
                model,
                {"drafter": drafter, "num_draft_tokens": 8},
                input_ids=ids(prompt),
                max_length=32,
            )
            assert found.shape == (1, 32)


def test_the_context_ends_an_answer_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    model = build("gpt2", n_positions=32)
    plain = model.generate(ids(REPETITIVE), max_length=32)
    found = model.generate(ids(REPETITIVE), max_length=50, custom_generate=speculate())
    assert found.tolist() == plain.tolist()
    assert "takes 32 tokens" in caplog.text
    with pytest.raises(paceline.errors.ContextOverflow, match="takes 32"):
        model.generate(ids(tokens_of(32)), max_length=50, custom_generate=speculate())


def test_a_shorter_context_of_the_draft_ends_drafting_and_not_the_answer(
    caplog: pytest.LogCaptureFixture,
) -> None:
    model, draft = tiny("llama"), build("gpt2", n_positions=16)
    prompt = tokens_of(10, seed=3)
    drafting = {"draft_model": draft, "num_draft_tokens": 5}
    same(model, drafting, input_ids=ids(prompt), max_new_tokens=40)
    assert caplog.text.count("from here on decoding is plain") == 1
    # A row beyond the draft's context drafts nothing; one within it still does.
    events: list[Any] = []
    same(
        model,
        {**drafting, "on_event": events.append},
        **padded(tokens_of(30, seed=4), (7,)),
        max_new_tokens=8,
    )
    drafted = [0, 0]
    for event in events:
        if isinstance(event, Round):
            drafted[event.id] += event.num_draft_tokens
    assert drafted[0] == 0
    assert drafted[1] > 0


@pytest.mark.parametrize(("target", "draft"), [(72, 64), (64, 72)])
def test_the_vocabularies_may_be_padded_to_different_sizes(target: int, draft: int) -> None:
    model, drafting = build("llama", vocab_size=target), build("gpt2", vocab_size=draft)
    for k in (1, 4, 8):
        for prompt in (REPETITIVE, (target - 1, 5)):
            same(
                model,
                {"draft_model": drafting, "num_draft_tokens": k},
                input_ids=ids(prompt),
                max_new_tokens=16,
            )


# ---------------------------------------------------------------- drafts


def test_a_draft_model_may_be_a_target_or_a_loaded_model() -> None:
    model = tiny("llama")
    loaded, own = "as it was loaded", "whole weights, all 64 head tokens"
    for draft_model, form in (
        (CachedTarget(HFDecoder(model)), loaded),
        (paceline.load(model), loaded),
        (model, own),
    ):
        output = model.generate(
            ids(REPETITIVE),
            max_new_tokens=12,
            return_dict_in_generate=True,
            custom_generate=speculate(draft_model=draft_model),
        )
        assert output.spec["drafter"] == "tree"
        assert output.spec["draft"] == f"{form}; tree of one path with leaves"
        assert output.sequences[0].tolist() == [*REPETITIVE, *answer(model, REPETITIVE, 12)]


def test_a_draft_model_may_be_the_path_of_one(tmp_path: Path) -> None:
    model, folder = tiny_folders.model(), tiny_folders.save(tmp_path)
    for options in ({"draft_model": folder}, {"drafter": "model", "model": str(folder)}):
        draft = speculate(**options, tokenizer=tiny_folders.tokenizer())
        same(model, options, input_ids=ids(REPETITIVE), max_new_tokens=12)
        assert draft.drafter.model.info.vocab_size == tiny_folders.PADDED_VOCAB
        assert draft.draft_model.tokenizer is not None
    # What is wrong elsewhere is told before anything is loaded.
    with pytest.raises(paceline.PacelineError, match="fastest"):
        speculate(draft_model=tmp_path / "nowhere", controller="fastest")
    with pytest.raises(paceline.PacelineError, match="nowhere"):
        speculate(draft_model=tmp_path / "nowhere")


def test_a_draft_model_with_another_tokenizer_is_refused_where_both_are_known() -> None:
    words, others = byte_level(), sentencepiece()
    draft = paceline.load(build("llama", vocab_size=400), words)
    assert speculate(draft_model=draft, tokenizer=words).draft_model is draft
    for options in ({"draft_model": draft}, {"drafter": "model", "model": draft}):
        with pytest.raises(paceline.errors.InvalidInput, match="another tokenizer than the target"):
            speculate(**options, tokenizer=others)
        assert speculate(**options).draft_model is draft, "nothing to compare with"


@pytest.mark.parametrize(("size", "told"), [(VOCAB, 0), (80, 1)])
def test_where_they_are_not_the_sizes_of_the_vocabularies_are_compared(
    size: int, told: int, caplog: pytest.LogCaptureFixture
) -> None:
    model, draft = tiny("llama"), build("gpt2", vocab_size=size)
    for given in (draft, CachedTarget(HFDecoder(draft))):
        caplog.clear()
        tokenizers._warn_once.cache_clear()
        same(model, {"draft_model": given}, input_ids=ids(REPETITIVE), max_new_tokens=4)
        assert len([text for text in caplog.messages if "a vocabulary of" in text]) == told


def test_where_the_target_takes_no_trees_the_default_is_a_chain() -> None:
    model = tiny("llama")
    speculation = speculate(draft_model=model)
    assert (speculation.drafter.name, speculation.chain_drafter.name) == ("tree", "model")
    whole, none = TargetInfo("any", VOCAB, gives=frozenset({"tree"})), TargetInfo("any", VOCAB)
    assert speculation._drafter_of_now(whole, model.device).name == "tree"
    assert speculation._drafter_of_now(none, model.device).name == "model"
    for options in ({"num_draft_tokens": 3}, {"verify": "token"}, {"drafter": "model"}):
        assert speculate(draft_model=model, **options).drafter.name == "model"


def test_how_a_draft_model_is_loaded_can_be_said(tmp_path: Path) -> None:
    folder = tiny_folders.save(tmp_path)
    speculation = speculate(draft_model=folder, draft_storage="int8", draft_head_tokens=64)
    assert speculation.draft == "int8, 64 of 320 head tokens; tree of one path with leaves"
    same(tiny_folders.model(), {"draft_model": folder}, input_ids=ids(REPETITIVE), max_new_tokens=8)


def test_a_draft_model_may_be_a_setting() -> None:
    model = tiny("llama")
    speculation = speculate("model", model=model)
    assert answer(model, REPETITIVE, 8, custom_generate=speculation) == answer(model, REPETITIVE, 8)
    with pytest.raises(paceline.errors.InvalidInput, match="the draft model is given twice"):
        speculate("model", model=model, draft_model=model)


def test_a_controller_by_name_and_as_an_object() -> None:
    model, lengths = tiny("llama"), []
    for options in (
        {"num_draft_tokens": 2},
        {"num_draft_tokens": 2, "controller": "fixed"},
        {"controller": "fixed", "controller_options": {"num_draft_tokens": 2}},
        {"controller": FixedController(2)},
    ):
        events: list[Any] = []
        speculation = speculate(draft_model=model, on_event=events.append, **options)
        answer(model, REPETITIVE, 9, custom_generate=speculation)
        lengths.append([event.num_draft_tokens for event in events if isinstance(event, Round)])
    assert lengths == [[2, 2, 2]] * 4


def test_references_may_be_text() -> None:
    tokenizer = byte_level()
    model = build("llama", vocab_size=len(tokenizer))
    prompt = tuple(tokenizer.encode("abc", add_special_tokens=False))
    right = answer(model, prompt, 12)
    for references in ([right], [tokenizer.decode(right)], tokenizer.decode(right)):
        speculation = speculate("ngram", references=references, tokenizer=tokenizer)
        assert answer(model, prompt, 12, custom_generate=speculation) == right
    with pytest.raises(paceline.errors.InvalidInput, match="tokenizer"):
        speculate("ngram", references=["abc"])
    exact = model.generate(
        ids(prompt),
        max_new_tokens=12,
        return_dict_in_generate=True,
        custom_generate=speculate("ngram", references=[(*prompt, *right)]),
    )
    assert exact.spec["num_accepted_tokens"] >= 8


def test_a_model_of_transformers_drafts_from_a_coarse_copy() -> None:
    """As it pays, or as it is said; the model itself, and what comes out, stay the same."""
    model = tiny("llama")
    draft = build("qwen2", hidden_size=64, head_dim=16, intermediate_size=96)
    before = {name: weight.clone() for name, weight in draft.state_dict().items()}
    plain = answer(model, REPETITIVE, 12)
    for options, form in (
        ({}, "whole weights, all 64 head tokens"),
        ({"draft_storage": "int4"}, "int4, all 64 head tokens"),
        ({"draft_storage": "int8", "draft_head_tokens": 40}, "int8, 40 of 64 head tokens"),
    ):
        output = model.generate(
            ids(REPETITIVE),
            max_new_tokens=12,
            return_dict_in_generate=True,
            custom_generate=speculate(draft_model=draft, num_draft_tokens=3, **options),
        )
        assert tuple(output.sequences[0, len(REPETITIVE) :].tolist()) == plain
        assert output.spec["draft"] == f"{form}; drafter model"
    assert all(torch.equal(weight, before[name]) for name, weight in draft.state_dict().items())
    with pytest.raises(paceline.errors.InvalidInput, match=r"need the lean decoder.*gpt2"):
        speculate(draft_model=tiny("gpt2"), draft_storage="int4")
    with pytest.raises(paceline.errors.InvalidInput, match="stays as it was loaded"):
        speculate(draft_model=paceline.load(model), draft_storage="int4")


def test_a_draft_model_changes_with_its_owner() -> None:
    """The draft is of the model as it is when `generate` runs, modules included."""
    model, draft = tiny("llama"), build("llama")
    speculation = speculate("model", draft_model=draft)

    def rate() -> float:
        output = model.generate(
            ids(REPETITIVE),
            max_new_tokens=12,
            return_dict_in_generate=True,
            custom_generate=speculation,
        )
        assert output.sequences[0].tolist() == [*REPETITIVE, *answer(model, REPETITIVE, 12)]
        return float(output.spec["draft_acceptance_rate"])

    assert rate() == 1
    draft.model.layers = draft.model.layers[:1]
    draft.config.num_hidden_layers = 1
    assert rate() < 1


# ---------------------------------------------------------------- batches


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_a_padded_batch_are_their_own_sequences(kind: str, drafter: str) -> None:
    model, rows = tiny(kind), prompts([1, 5, 17])
    eos = answer(model, rows[1], 14)[6]  # so that one row ends before the others
    for k in (1, 4):
        found = same(
            model,
            {"num_draft_tokens": k, **DRAFTERS[drafter](kind)},
            **padded(*rows),
            max_new_tokens=14,
            eos_token_id=eos,
            pad_token_id=0,
        )
        for row, prompt in zip(found.tolist(), rows, strict=True):
            alone = answer(model, prompt, 14, eos_token_id=eos)
            assert row[17 : 17 + len(alone)] == list(alone)
            assert set(row[17 + len(alone) :]) <= {0}


def test_rows_that_accept_differently_do_not_disturb_one_another() -> None:
    model, rows = tiny("llama"), prompts([1, 5, 17])
    texts = [(*row, *answer(model, row, 14)) for row in rows]
    right = dict(zip(rows, texts, strict=True))

    def rule(so_far: tuple[int, ...], number: int, k: int) -> list[int]:
        text = next(text for prompt, text in right.items() if so_far[: len(prompt)] == prompt)
        j = (len(text) + number) % 5
        ahead = list(text[len(so_far) : len(so_far) + k])
        return ahead[:j] + [(token + 1) % VOCAB for token in ahead[j:]]

    same(model, {"drafter": Line(rule), "num_draft_tokens": 6}, **padded(*rows), max_new_tokens=14)


def test_a_mask_is_found_from_padding_tokens_as_in_generate() -> None:
    rows = padded(*prompts([3, 9]))
    same(tiny("llama"), input_ids=rows["input_ids"], max_new_tokens=8)


# ---------------------------------------------------------------- what is returned


def outputs(model: Any, speculation: Any, **call: Any) -> tuple[Any, Any]:
    call = {
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
        **call,
    }
    return model.generate(**call), model.generate(**call, custom_generate=speculation)


@pytest.mark.parametrize("drafter", ["none", "ngram", "model"])
def test_the_dict_holds_what_that_of_generate_holds(drafter: str) -> None:
    model = tiny("llama")
    plain, found = outputs(
        model,
        speculate(**DRAFTERS[drafter]("llama")),
        input_ids=ids(REPETITIVE),
        max_new_tokens=12,
        repetition_penalty=1.3,
    )
    assert isinstance(found, SpeculativeOutput)
    assert isinstance(found, type(plain))
    assert set(found.keys()) == {*plain.keys(), "spec"}
    assert found.sequences.tolist() == plain.sequences.tolist()
    for name in ("scores", "logits"):
        assert len(found[name]) == len(plain[name]) == 12
        for ours, theirs in zip(found[name], plain[name], strict=True):
            assert ours.shape == theirs.shape
            assert ours.dtype == theirs.dtype
            torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5)
    transitions = (
        model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
        for out in (plain, found)
    )
    torch.testing.assert_close(*transitions, rtol=0, atol=1e-5)


def test_scores_of_sampling_are_those_the_token_was_drawn_from() -> None:
    model = tiny("llama")
    output = model.generate(
        ids(REPETITIVE),
        max_new_tokens=12,
        do_sample=True,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        return_dict_in_generate=True,
        output_scores=True,
        custom_generate=speculate(draft_model=tiny("gpt2"), seed=1),
    )
    drawn = output.sequences[0, len(REPETITIVE) :]
    theirs = model.generate(
        ids(REPETITIVE),
        max_new_tokens=12,
        do_sample=True,
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        return_dict_in_generate=True,
        output_scores=True,
        # Forces the same tokens, after the scores are taken.
        custom_generate=_forced(drawn.tolist()),
    )
    for ours, expected in zip(output.scores, theirs, strict=True):
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-5)
        assert torch.isfinite(ours).sum() <= 5


def _forced(tokens: list[int]) -> Any:
    """The scores of a loop of `generate`'s form along given tokens, without a cache."""

    def run(model: Any, input_ids: Any, logits_processor: Any, **_: Any) -> Any:
        scores = []
        for token in tokens:
            logits = model(input_ids, use_cache=False).logits[:, -1]
            scores.append(logits_processor(input_ids, logits))
            input_ids = torch.cat([input_ids, torch.tensor([[token]])], dim=1)
        return scores

    return run


def test_rows_that_have_ended_are_certain_of_padding() -> None:
    model, rows = tiny("llama"), prompts([1, 5, 17])
    eos = answer(model, rows[1], 14)[3]
    plain, found = outputs(
        model, speculate(), **padded(*rows), max_new_tokens=10, eos_token_id=eos, pad_token_id=0
    )
    assert len(found.scores) == len(plain.scores)
    answers = found.sequences[:, 17:]
    for column, (ours, theirs) in enumerate(zip(found.scores, plain.scores, strict=True)):
        for row in range(3):
            if eos in answers[row, :column].tolist():
                assert ours[row].log_softmax(-1)[0] == 0
            else:
                torch.testing.assert_close(ours[row], theirs[row], rtol=0, atol=1e-5)
    assert (answers == 0).any()


def test_a_rule_has_its_settings_and_a_lossy_one_says_so() -> None:
    call: dict[str, Any] = {
        "do_sample": True,
        "max_new_tokens": 6,
        "return_dict_in_generate": True,
    }
    for verify, settings, promise in (
        ("top-beta", {"beta": 1}, "none"),
        ("block", None, "law"),
        ("hsd", None, "law"),
    ):
        speculation = speculate(verify=verify, verify_options=settings)
        output = tiny("llama").generate(ids(REPETITIVE), **call, custom_generate=speculation)
        assert output.spec["exact"] is (promise != "none")
        assert output.spec["promise"] == promise
        if verify == "top-beta":  # with beta = 1 the greedy answer, at any temperature
            plain = answer(tiny("llama"), REPETITIVE, 6, do_sample=False)
            assert tuple(output.sequences[0, len(REPETITIVE) :].tolist()) == plain
    with pytest.raises(paceline.errors.InvalidInput, match="did you mean 'beta'"):
        speculate(verify="top-beta", verify_options={"betta": 1})


def test_acceptance_is_told_in_the_dict_and_by_events() -> None:
    model, events = tiny("llama"), []
    text = (*REPETITIVE, *answer(model, REPETITIVE, 12))
    output = model.generate(
        ids(REPETITIVE),
        max_new_tokens=12,
        return_dict_in_generate=True,
        custom_generate=speculate(flip(text, VOCAB, 2), num_draft_tokens=4, on_event=events.append),
    )
    # Rounds of two right tokens and a correction: 4 rounds for 12 tokens.
    assert output.spec["drafter"] == "line"
    assert output.spec["verifier"] == "token"
    assert output.spec["exact"] is True
    assert output.spec["promise"] == "law, path"
    assert output.spec["num_drafts"] == 4
    assert output.spec["num_accepted_tokens"] == 8
    assert output.spec["mean_acceptance_length"] == 3
    rounds = [event for event in events if isinstance(event, Round)]
    assert [len(event.tokens) for event in rounds] == [3, 3, 3, 3]
    assert isinstance(events[-1], Finished)


# ---------------------------------------------------------------- nothing stays


def test_calls_leave_no_trace_and_their_order_does_not_matter() -> None:
    model, draft = build("llama"), build("gpt2")
    before = copy.deepcopy(
        [
            (m.config.to_dict(), m.generation_config.to_dict(), m.state_dict())
            for m in (model, draft)
        ]
    )
    attributes = [sorted(vars(module)) for m in (model, draft) for module in m.modules()]
    speculation = speculate(draft_model=draft, num_draft_tokens=3)

    def call(prompt: Any, **options: Any) -> Any:
        return model.generate(
            ids(prompt), max_new_tokens=10, custom_generate=speculation, **options
        ).tolist()

    first, second = call(REPETITIVE), call((7,), do_sample=False, repetition_penalty=1.3)
    for _ in range(2):
        assert call((7,), repetition_penalty=1.3) == second
        assert call(REPETITIVE) == first
    for m, (config, generation, state) in zip((model, draft), before, strict=True):
        assert m.config.to_dict() == config
        assert m.generation_config.to_dict() == generation
        assert all(torch.equal(m.state_dict()[name], tensor) for name, tensor in state.items())
    assert [sorted(vars(module)) for m in (model, draft) for module in m.modules()] == attributes
    assert model.generate(ids(REPETITIVE), max_new_tokens=10).tolist() == first


# ---------------------------------------------------------------- options of speculate


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"drafter": "ngrm"}, paceline.errors.UnknownName, "did you mean 'ngram'"),
        ({"verify": "tokn"}, paceline.errors.UnknownName, "did you mean 'token'"),
        ({"max_ngrm": 3}, paceline.errors.UnknownName, "did you mean 'max_ngram'"),
        ({"max_ngram": 0}, paceline.errors.InvalidInput, "max_ngram"),
        ({"num_draft_tokens": -1}, paceline.errors.InvalidInput, "num_draft_tokens"),
        ({"seed": -1}, paceline.errors.InvalidInput, "seed"),
        ({"stop_strings": "x"}, paceline.errors.InvalidInput, "needs the tokenizer"),
        ({"drafter": "model"}, paceline.errors.InvalidInput, "needs a draft model"),
        ({"draft_model": 5}, paceline.errors.InvalidInput, "model of transformers"),
        (
            {"draft_model": torch.nn.Linear(2, 2)},
            paceline.errors.InvalidInput,
            "AutoModelForCausalLM",
        ),
    ],
)
def test_wrong_options_are_refused_when_they_are_given(
    options: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        speculate(**options)


# Some of everything that an option cannot be.
WRONG: dict[str, list[Any]] = {
    "drafter": [5, [], ""],
    "num_draft_tokens": ["5", 2.5, True],
    "controller": [5, FixedController, ""],
    "settings": [
        5,
        [],
        "nosuch.json",
        {"schema": "x"},
        {"schema": "paceline.settings/1", "drafting": 3},
    ],
    "controller_options": [3, "fixed", {"num_draft_token": 3}, {3: 4}],
    "draft_model": [5, "name", [], object()],
    "draft_head": [5, "name", [], object()],
    "draft_storage": ["int4", "int2"],
    "draft_head_tokens": [5, "most"],
    "verify": [5, ""],
    "verify_options": [5, "beta=1", {1: 2}, {"beta": 1}],
    "tokenizer": [5, "name"],
    "stop_strings": [0, 5, b"END", [5], ""],
    "streamer": [5, print],
    "seed": ["5", 2.5, True],
    "on_event": [5, "print"],
    "references": [3, [3], [["a"]], "text without a tokenizer"],
    "max_ngram": ["3", 2.5],
    "model": [3],
}


def test_every_option_is_in_the_table() -> None:
    options = inspect.signature(speculate).parameters.keys() - {"options"}
    assert options < WRONG.keys()


@pytest.mark.parametrize("option", WRONG)
def test_no_wrong_type_is_let_through(option: str) -> None:
    for value in WRONG[option]:
        with pytest.raises(paceline.errors.PacelineError) as caught:
            speculate(**{option: value})
        assert str(caught.value), (option, value)


def test_a_controller_has_its_length() -> None:
    with pytest.raises(paceline.errors.InvalidInput, match="a controller given by name"):
        speculate(controller=FixedController(2), num_draft_tokens=2)


def test_settings_and_draft_models_go_with_drafters_that_take_them() -> None:
    with pytest.raises(paceline.errors.InvalidInput, match="takes no draft model"):
        speculate("ngram", draft_model=tiny("llama"))
    drafter = flip((1, 2), VOCAB, 0)
    with pytest.raises(paceline.errors.InvalidInput, match="has its settings already"):
        speculate(drafter, max_ngram=2)
    with pytest.raises(paceline.errors.InvalidInput, match="has its settings already"):
        speculate(drafter, draft_model=tiny("llama"))
