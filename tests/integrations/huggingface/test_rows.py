"""Logits processors and stopping criteria: the same results, and the same calls, as `generate`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    SynthIDTextWatermarkingConfig,
    WatermarkingConfig,
)

from paceline.core.events import Round
from paceline.errors import InvalidInput
from paceline.integrations.huggingface import speculate
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
from tests.rigged import flip, oracle
from tests.tiny_models import VOCAB, build, tiny, tokens_of
from tests.tiny_tokenizers import byte_level

# ---------------------------------------------------------------- the library's processors

GREEDY = tiny("llama").generate(ids(REPETITIVE), max_new_tokens=12)[0, len(REPETITIVE) :].tolist()

OPTIONS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "reward for repetition": {"repetition_penalty": 0.7},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "bad_words_ids": {"bad_words_ids": [[GREEDY[0]], GREEDY[2:4]]},
    "sequence_bias": {"sequence_bias": [[[GREEDY[1]], -20.0], [[GREEDY[3], GREEDY[4]], 5.0]]},
    "suppress_tokens": {"suppress_tokens": GREEDY[:3]},
    "begin_suppress_tokens": {"begin_suppress_tokens": GREEDY[:1]},
    "min_new_tokens": {"min_new_tokens": 6, "eos_token_id": GREEDY[2]},
    "min_length": {"min_length": len(REPETITIVE) + 5, "eos_token_id": GREEDY[2]},
    "forced_eos_token_id": {"forced_eos_token_id": 4, "eos_token_id": 4},
    "length penalty": {
        "exponential_decay_length_penalty": (3, 1.5),
        "eos_token_id": GREEDY[-1],
    },
    "renormalize_logits": {"renormalize_logits": True},
    "remove_invalid_values": {"remove_invalid_values": True},
    "watermark": {"watermarking_config": WatermarkingConfig(bias=6.0)},
    "several": {
        "repetition_penalty": 1.2,
        "no_repeat_ngram_size": 3,
        "min_new_tokens": 4,
        "eos_token_id": [GREEDY[1], GREEDY[6]],
    },
}


@pytest.mark.parametrize("drafter", ["ngram", "model", "oracle"])
@pytest.mark.parametrize("option", OPTIONS)
def test_options_of_the_config_work_at_every_draft_position(option: str, drafter: str) -> None:
    model, options = tiny("llama"), OPTIONS[option]
    if drafter == "oracle":  # of the text without the option, which must not come through
        speculation = {"drafter": oracle_of(model, REPETITIVE)}
    else:
        speculation = DRAFTERS[drafter]("llama")
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 12, **options}
    found = same(model, speculation, **call)
    changes = option not in ("renormalize_logits", "remove_invalid_values")
    assert (found[0, len(REPETITIVE) :].tolist() != GREEDY) == changes


@pytest.mark.parametrize(
    "option",
    [
        "repetition_penalty",
        "encoder_repetition_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "min_new_tokens",
        "watermark",
        "several",
    ],
)
def test_options_work_on_the_padded_rows_of_a_batch(option: str) -> None:
    rows = padded(*prompts([1, 5, 17]), REPETITIVE)
    same(tiny("llama"), **rows, max_new_tokens=12, pad_token_id=0, **OPTIONS[option])


def test_rows_see_their_padding_as_in_generate() -> None:
    """Padding ids stand in what the processors see, so an n-gram of padding counts, too."""
    rows = padded((5,), tokens_of(9), pad=11)
    for size in (1, 2):
        same(tiny("llama"), **rows, max_new_tokens=12, pad_token_id=11, no_repeat_ngram_size=size)


def test_allowed_tokens_know_the_prompt_and_see_its_text() -> None:
    model, rows = tiny("llama"), prompts([1, 5, 17])
    calls: list[tuple[int, tuple[int, ...]]] = []

    def allowed(batch_id: int, sent: Tensor) -> list[int]:
        assert sent.dim() == 1
        calls.append((batch_id, tuple(sent.tolist())))
        return [3 + batch_id, 10 + (int(sent[-1]) * 7 + batch_id) % 40, 60]

    call = {**padded(*rows), "max_new_tokens": 8, "pad_token_id": 0}
    for draft in ({"drafter": "ngram"}, {"draft_model": model}):
        calls.clear()
        plain = model.generate(**call, prefix_allowed_tokens_fn=allowed)
        expected = sorted(calls)
        calls.clear()
        found = model.generate(
            **call, prefix_allowed_tokens_fn=allowed, custom_generate=speculate(**draft)
        )
        assert found.tolist() == plain.tolist()
        assert sorted(calls) == expected


def test_allowed_tokens_know_the_prompt_among_several_samples() -> None:
    model, seen = tiny("llama"), set()

    def allowed(batch_id: int, sent: Tensor) -> list[int]:
        seen.add((batch_id, int(sent[0])))
        return [3 + batch_id, 13 + batch_id]

    found = model.generate(
        ids((21, 22), (31, 32)),
        max_new_tokens=6,
        do_sample=True,
        num_return_sequences=3,
        pad_token_id=0,
        prefix_allowed_tokens_fn=allowed,
        custom_generate=speculate(seed=0),
    )
    assert seen == {(0, 21), (1, 31)}
    assert {int(t) for t in found[:3, 2:].flatten()} == {3, 13}
    assert {int(t) for t in found[3:, 2:].flatten()} == {4, 14}


def test_guidance_works_for_one_prompt() -> None:
    model = tiny("llama")
    for speculation in ({"drafter": "ngram"}, {"draft_model": model, "num_draft_tokens": 3}):
        same(
            model,
            speculation,
            input_ids=ids(REPETITIVE),
            max_new_tokens=10,
            guidance_scale=2.0,
            negative_prompt_ids=ids((30, 31)),
        )
    with pytest.raises(InvalidInput, match="one prompt at a time"):
        model.generate(
            ids((5,), (6,)),
            max_new_tokens=3,
            pad_token_id=0,
            guidance_scale=2.0,
            custom_generate=speculate(),
        )


def test_a_watermark_with_a_state_is_each_rows_own() -> None:
    model = tiny("llama")
    config = SynthIDTextWatermarkingConfig(keys=list(range(1, 9)), ngram_len=3)
    rows = ids(REPETITIVE, tokens_of(9))
    call = {"max_new_tokens": 10, "watermarking_config": config, "pad_token_id": 0}
    plain = model.generate(rows, **call)
    assert plain[0].tolist() != [*REPETITIVE, *GREEDY[:10]]
    same(model, {"draft_model": model}, input_ids=rows, **call)


# ---------------------------------------------------------------- the user's own processors


class Recording(LogitsProcessor):
    """Writes down what it sees, and depends on how often it was called."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert scores.shape == (1, VOCAB)
        assert scores.dtype == torch.float32
        self.seen.append(input_ids[0].tolist())
        scores[:, len(self.seen) % VOCAB] += 4.0  # in place, as many do
        scores[:, input_ids[0, -1]] -= 3.0
        return scores


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_own_processors_see_every_prefix_once_in_order(drafter: str) -> None:
    model = tiny("llama")
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 14}
    theirs, ours = Recording(), Recording()
    plain = model.generate(**call, logits_processor=LogitsProcessorList([theirs]))
    for k in (1, 4, 8):
        ours = Recording()
        speculation = speculate(num_draft_tokens=k, **DRAFTERS[drafter]("llama"))
        found = model.generate(
            **call, logits_processor=LogitsProcessorList([ours]), custom_generate=speculation
        )
        assert found.tolist() == plain.tolist()
        assert ours.seen == theirs.seen
        text = plain[0].tolist()
        assert ours.seen == [text[:n] for n in range(len(REPETITIVE), len(text))]


@pytest.mark.parametrize("offset", range(8))
def test_no_processor_is_called_behind_the_end(offset: int) -> None:
    """Also where the end falls inside a block that would have been accepted in full."""
    model = tiny("llama")
    call = {
        "input_ids": ids(REPETITIVE),
        "max_new_tokens": 12,
        "eos_token_id": GREEDY[offset],
    }

    class Watching(Recording):
        def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
            self.seen.append(input_ids[0].tolist())
            return scores

    theirs, ours = Watching(), Watching()
    model.generate(**call, logits_processor=LogitsProcessorList([theirs]))
    drafter = oracle_of(model, REPETITIVE)
    model.generate(
        **call,
        logits_processor=LogitsProcessorList([ours]),
        custom_generate=speculate(drafter, num_draft_tokens=8),
    )
    assert ours.seen == theirs.seen


def test_a_rejected_draft_leaves_no_trace_in_a_processor() -> None:
    model = tiny("llama")
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 14}
    theirs = Recording()
    plain = model.generate(**call, logits_processor=LogitsProcessorList([theirs]))
    for j in range(5):
        ours = Recording()
        drafter = flip(plain[0].tolist(), VOCAB, j)
        found = model.generate(
            **call, logits_processor=LogitsProcessorList([ours]), custom_generate=speculate(drafter)
        )
        assert found.tolist() == plain.tolist()
        assert ours.seen == theirs.seen


def test_the_draft_follows_the_librarys_processors() -> None:
    """With the target as draft, penalties and warpers leave nothing to reject."""
    model = tiny("llama")
    for options in (
        {"repetition_penalty": 1.5, "no_repeat_ngram_size": 2, "bad_words_ids": [[GREEDY[0]]]},
        {
            "do_sample": True,
            "temperature": 0.6,
            "top_k": 8,
            "top_p": 0.9,
            "repetition_penalty": 1.5,
        },
    ):
        output = model.generate(
            ids(REPETITIVE),
            max_new_tokens=20,
            return_dict_in_generate=True,
            custom_generate=speculate(draft_model=model, num_draft_tokens=5, seed=3),
            **options,
        )
        assert output.spec["num_draft_tokens"] > 10
        assert output.spec["draft_acceptance_rate"] == 1


# ---------------------------------------------------------------- stopping criteria


class Stops(StoppingCriteria):
    """Ends at a token, writes down what it sees, and holds the scores against the text."""

    def __init__(self, token: int, *, scores: bool = False) -> None:
        self.token, self.scores = token, scores
        self.seen: list[tuple[list[int], int]] = []

    def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
        self.seen.append((input_ids[0].tolist(), -1 if scores is None else len(scores)))
        if self.scores:
            assert int(scores[-1][0].argmax()) == int(input_ids[0, -1])
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize("offset", range(10))
def test_own_criteria_end_the_answer_at_any_offset_of_a_block(offset: int) -> None:
    model = tiny("llama")
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 12}
    for k in (1, 8):
        for wants_scores in (False, True):
            theirs, ours = (Stops(GREEDY[offset], scores=wants_scores) for _ in range(2))
            more = {"output_scores": wants_scores, "return_dict_in_generate": True}
            plain = model.generate(**call, **more, stopping_criteria=StoppingCriteriaList([theirs]))
            found = model.generate(
                **call,
                **more,
                stopping_criteria=StoppingCriteriaList([ours]),
                custom_generate=speculate(oracle_of(model, REPETITIVE), num_draft_tokens=k),
            )
            assert found.sequences.tolist() == plain.sequences.tolist()
            assert ours.seen == theirs.seen


def test_criteria_see_the_scores_that_are_returned() -> None:
    """Of sampling too, where temperature and truncation are done elsewhere than by processors."""
    model, seen = tiny("llama"), []

    class Watching(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            seen.append(tuple(scores))
            return torch.tensor([False])

    output = model.generate(
        ids(REPETITIVE),
        max_new_tokens=8,
        do_sample=True,
        temperature=0.7,
        top_k=5,
        repetition_penalty=1.3,
        return_dict_in_generate=True,
        output_scores=True,
        stopping_criteria=StoppingCriteriaList([Watching()]),
        custom_generate=speculate(draft_model=model, seed=5),
    )
    assert [len(scores) for scores in seen] == list(range(1, 9))
    for scores in seen:
        for found, returned in zip(scores, output.scores, strict=False):
            torch.testing.assert_close(found, returned, rtol=0, atol=0)


def test_processors_and_criteria_are_called_in_turn() -> None:
    model = tiny("llama")

    def calls(**door: Any) -> list[str]:
        log: list[str] = []

        class P(LogitsProcessor):
            def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
                log.append(f"process {input_ids.shape[1]}")
                return scores

        class C(StoppingCriteria):
            def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
                log.append(f"judge {input_ids.shape[1]}")
                return torch.tensor([input_ids.shape[1] == len(REPETITIVE) + 9])

        model.generate(
            ids(REPETITIVE),
            max_new_tokens=12,
            logits_processor=LogitsProcessorList([P()]),
            stopping_criteria=StoppingCriteriaList([C()]),
            **door,
        )
        return log

    plain = calls()
    assert len(plain) == 18
    for k in (1, 3, 8):
        for drafter in (oracle_of(model, REPETITIVE), "ngram"):
            assert calls(custom_generate=speculate(drafter, num_draft_tokens=k)) == plain


def test_lengths_and_times_among_the_criteria() -> None:
    model, oracle = tiny("llama"), oracle_of(tiny("llama"), REPETITIVE)
    n = len(REPETITIVE)
    for length in (1, n, n + 1, n + 5, n + 20):  # one token comes in any case
        with_length = StoppingCriteriaList([MaxLengthCriteria(length)])
        same(
            model,
            {"drafter": oracle, "num_draft_tokens": 8},
            input_ids=ids(REPETITIVE),
            max_new_tokens=12,
            stopping_criteria=with_length,
        )
    late = MaxTimeCriteria(1.0, initial_timestamp=time.time() - 5)
    found = same(
        model,
        {"drafter": oracle},
        input_ids=ids(REPETITIVE),
        max_new_tokens=12,
        stopping_criteria=StoppingCriteriaList([late]),
    )
    assert found.shape == (1, n + 1)
    same(model, {"drafter": oracle}, input_ids=ids(REPETITIVE), max_new_tokens=12, max_time=300.0)


def test_rows_of_a_batch_end_by_themselves() -> None:
    model, rows = tiny("llama"), prompts([1, 5, 17])
    ends = [answer(model, row, 12)[4 + 2 * i] for i, row in enumerate(rows)]

    class Ends(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            return torch.isin(input_ids[:, -1], torch.tensor(ends))

    # With an end token that never comes, so that generate pads rows that have ended.
    call = {**padded(*rows), "max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": 2}
    banned = {"suppress_tokens": [2]}
    same(model, stopping_criteria=StoppingCriteriaList([Ends()]), **call, **banned)


# ---------------------------------------------------------------- stop strings


class Scripted(LogitsProcessor):
    """The text that comes out, whatever the model says."""

    def __init__(self, start: int, script: Sequence[int]) -> None:
        self.start, self.script = start, script

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        only = torch.full_like(scores, -torch.inf)
        only[:, self.script[input_ids.shape[1] - self.start]] = 0
        return only


@pytest.mark.parametrize("end", range(2, 16))
def test_stop_strings_end_where_generate_ends(end: int) -> None:
    """A string over three tokens, the last with more text, at each offset of a block of 16."""
    tokenizer = byte_level()
    model = build("llama", vocab_size=len(tokenizer))

    def encoded(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False))

    prompt, script = encoded("ab"), encoded("q" * 16)
    script[end - 2 : end + 1] = encoded("x") + encoded("y") + encoded("the")
    for strings in (["xyt"], ["END", "xythe"], ["yth"]):
        call = {
            "input_ids": ids(prompt),
            "max_new_tokens": 16,
            "logits_processor": LogitsProcessorList([Scripted(len(prompt), script)]),
        }
        plain = model.generate(**call, stop_strings=strings, tokenizer=tokenizer)
        assert plain.shape[1] == len(prompt) + end + 1
        events: list[Any] = []
        found = model.generate(
            **call,
            return_dict_in_generate=True,
            output_scores=True,
            custom_generate=speculate(
                oracle((*prompt, *script)),
                num_draft_tokens=16,
                stop_strings=strings,
                tokenizer=tokenizer,
                on_event=events.append,
            ),
        )
        assert found.sequences.tolist() == plain.tolist()
        assert len(found.scores) == end + 1
        assert sum(len(e.tokens) for e in events if isinstance(e, Round)) == end + 1


def test_one_stop_string_needs_no_list() -> None:
    tokenizer = byte_level()
    model = build("llama", vocab_size=len(tokenizer))
    prompt = tuple(tokenizer.encode("ab", add_special_tokens=False))
    end = tokenizer.decode(answer(model, prompt, 9)[-1:])
    plain = model.generate(ids(prompt), max_new_tokens=12, stop_strings=end, tokenizer=tokenizer)
    theirs = speculate(tokenizer=tokenizer)  # and the strings to generate
    given = model.generate(ids(prompt), max_new_tokens=12, stop_strings=end, custom_generate=theirs)
    assert given.tolist() == plain.tolist()
    speculation = speculate(stop_strings=end, tokenizer=tokenizer)
    found = model.generate(ids(prompt), max_new_tokens=12, custom_generate=speculation)
    assert found.tolist() == plain.tolist()


def test_processors_see_float32_whatever_the_model_is_in() -> None:
    model = build("llama").double()
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 8}
    theirs, ours = Recording(), Recording()
    plain = model.generate(**call, logits_processor=LogitsProcessorList([theirs]))
    found = model.generate(
        **call,
        logits_processor=LogitsProcessorList([ours]),
        custom_generate=speculate(draft_model=tiny("gpt2")),
    )
    assert found.tolist() == plain.tolist()
    assert ours.seen == theirs.seen


# ---------------------------------------------------------------- processors of a batch


@pytest.mark.parametrize("drafter", ["none", "ngram"])
def test_a_processor_that_knows_its_batch_gives_each_row_its_own(drafter: str) -> None:
    bias = torch.zeros(2, VOCAB)
    bias[0, 10] = bias[1, 11] = 100
    found = same(
        tiny("llama"),
        {"drafter": drafter},
        input_ids=ids((5, 9, 7), (7, 9, 5)),
        max_new_tokens=3,
        logits_processor=[lambda _, scores: scores + bias],
    )
    assert found[:, 3:].tolist() == [[10] * 3, [11] * 3]


class Grammar(LogitsProcessor):
    """Takes the next token of its script, and dies if it is shown another text than its own.

    It keeps its place by itself, and the script is a handle that cannot be copied.
    """

    class Script:
        def __init__(self, tokens: tuple[int, ...]) -> None:
            self.tokens = tokens

        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("a handle of another language")

    def __init__(self, tokens: tuple[int, ...]) -> None:
        self.script, self.seen, self.first = self.Script(tokens), [], None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = input_ids.tolist()
        if self.first is None:
            self.first, self.seen = [row[0] for row in rows], [0 for _ in rows]
        assert [row[0] for row in rows] == self.first
        allowed = torch.full_like(scores, -torch.inf)
        for row, place in enumerate(self.seen):
            allowed[row, self.script.tokens[place]] = 0
            self.seen[row] = place + 1
        return scores + allowed


def test_a_processor_with_a_state_is_each_rows_own() -> None:
    model, script = tiny("llama"), (20, 21, 22, 23, 24, 25)
    call = {"input_ids": ids((5, 9, 7), (7, 9, 5)), "max_new_tokens": 6}
    plain = model.generate(**call, logits_processor=[Grammar(script)])
    for drafter in ("none", "ngram"):
        speculation = speculate(drafter, num_draft_tokens=3)
        found = model.generate(
            **call, logits_processor=[Grammar(script)], custom_generate=speculation
        )
        assert found.tolist() == plain.tolist()


@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(
    ("returned", "came"),
    [
        (lambda scores: None, "a NoneType"),
        (lambda scores: scores[0], r"\[64\]"),
        (lambda scores: scores.repeat(3, 1), r"\[3, 64\]"),
        (lambda scores: scores[:, :5], r"\[1, 5\]"),
        (lambda scores: scores[None], r"\[1, 1, 64\]"),
    ],
)
def test_what_a_processor_returns_is_looked_at(rows: int, returned: Any, came: str) -> None:
    with pytest.raises(InvalidInput, match=f"returned {came}; .* shape \\[1, 64\\]"):
        tiny("llama").generate(
            ids(*[(5, 9, 7)] * rows),
            max_new_tokens=3,
            logits_processor=[lambda _, scores: returned(scores)],
            custom_generate=speculate(),
        )
