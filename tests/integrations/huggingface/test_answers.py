"""Streams, and samples: their law, their seeds, their number."""

from __future__ import annotations

import itertools
import math
import threading
from collections import Counter
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor
from transformers import TextIteratorStreamer, TextStreamer

from paceline.errors import InvalidInput
from paceline.integrations.huggingface import speculate
from tests.integrations.huggingface.doors import (
    REPETITIVE,
    Recorder,
    answer,
    ids,
    oracle_of,
    padded,
    prompts,
)
from tests.tiny_models import build, tiny
from tests.tiny_tokenizers import byte_level

# ---------------------------------------------------------------- streamers


def streamed(model: Any, speculation: dict[str, Any] | None, **call: Any) -> list[Any]:
    recorder = Recorder()
    if speculation is None:
        model.generate(**call, streamer=recorder)
    else:
        model.generate(**call, custom_generate=speculate(**speculation, streamer=recorder))
    return recorder.calls


@pytest.mark.parametrize("k", [0, 1, 4, 8])
def test_a_streamer_gets_the_calls_of_generate(k: int) -> None:
    model = tiny("llama")
    for options in ({}, {"eos_token_id": answer(model, REPETITIVE, 12)[6]}):
        call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 12, **options}
        plain = streamed(model, None, **call)
        assert plain[0] == ((1, len(REPETITIVE)), [list(REPETITIVE)])
        assert plain[-1] == "end"
        for drafter in ("ngram", oracle_of(model, REPETITIVE)):
            assert streamed(model, {"drafter": drafter, "num_draft_tokens": k}, **call) == plain


def test_a_streamer_may_be_given_to_generate() -> None:
    """Which keeps it to itself, and has put the prompt when the custom loop begins."""
    model, theirs, ours = tiny("llama"), Recorder(), Recorder()
    model.generate(ids(REPETITIVE), max_new_tokens=6, streamer=theirs)
    call: dict[str, Any] = {"inputs": ids(REPETITIVE), "max_new_tokens": 6}
    model.generate(**call, streamer=ours, custom_generate=speculate())
    assert ours.calls == theirs.calls
    with pytest.raises(InvalidInput, match="given to generate and to speculate"):
        model.generate(**call, streamer=ours, custom_generate=speculate(streamer=ours))


def test_a_streamer_that_takes_batches_gets_them_column_by_column() -> None:
    model, rows = tiny("llama"), prompts([1, 5, 17])
    eos = answer(model, rows[1], 12)[4]
    call = {**padded(*rows), "max_new_tokens": 12, "eos_token_id": eos, "pad_token_id": 0}
    assert streamed(model, {"draft_model": model}, **call) == streamed(model, None, **call)


def test_a_streamer_for_one_row_refuses_a_batch_as_in_generate() -> None:
    tokenizer = byte_level()
    for door in ({"streamer": TextStreamer(tokenizer)}, {"custom_generate": None}):
        if "custom_generate" in door:
            door = {"custom_generate": speculate(streamer=TextStreamer(tokenizer))}
        with pytest.raises(ValueError, match="only supports batch size 1"):
            tiny("llama").generate(ids((5,), (6,)), max_new_tokens=3, pad_token_id=0, **door)


def test_text_streams_from_a_thread() -> None:
    tokenizer = byte_level()
    model = build("llama", vocab_size=len(tokenizer))
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=60)
    call = {
        "inputs": ids(REPETITIVE),
        "max_new_tokens": 12,
        "custom_generate": speculate(streamer=streamer),
    }
    thread = threading.Thread(target=model.generate, kwargs=call)
    thread.start()
    text = "".join(streamer)
    thread.join()
    assert text == tokenizer.decode(answer(model, REPETITIVE, 12))


def test_tokens_stream_as_soon_as_their_round_is_over() -> None:
    model, seen = tiny("llama"), []

    class Late(Recorder):
        def put(self, value: Tensor) -> None:
            super().put(value)
            seen.append(len(rounds))

    rounds: list[Any] = []
    model.generate(
        ids(REPETITIVE),
        max_new_tokens=12,
        custom_generate=speculate("none", streamer=Late(), on_event=rounds.append),
    )
    # The prompt, then after n - 1 rounds and the prefill the n-th token.
    assert seen == list(range(13))


# ---------------------------------------------------------------- samples

WARPERS = {"temperature": 0.8, "top_k": 4, "top_p": 0.9}


def five_tokens() -> Any:
    """A target over five tokens; none is special."""
    return small("llama", 5)


def small(kind: str, size: int) -> Any:
    """A model of one layer, since thousands of rows go through it."""
    layers = {"n_layer": 1} if kind == "gpt2" else {"num_hidden_layers": 1}
    return build(kind, vocab_size=size, pad_token_id=None, bos_token_id=None, **layers)


def exact_law(model: Any, prompt: tuple[int, ...], length: int) -> dict[tuple[int, ...], float]:
    """The law of the first tokens under `WARPERS`, by the steps of transformers."""
    steps = transformers.LogitsProcessorList(
        [
            transformers.TemperatureLogitsWarper(WARPERS["temperature"]),
            transformers.TopKLogitsWarper(int(WARPERS["top_k"])),
            transformers.TopPLogitsWarper(WARPERS["top_p"]),
        ]
    )
    law: dict[tuple[int, ...], float] = {}
    for tokens in itertools.product(range(5), repeat=length):
        probability = 1.0
        for n in range(length):
            text = ids((*prompt, *tokens[:n]))
            with torch.no_grad():
                logits = model(text, use_cache=False).logits[:, -1]
            probability *= float(steps(text, logits).softmax(-1)[0, tokens[n]])
        law[tokens] = probability
    return law


@pytest.mark.statistical
@pytest.mark.parametrize(
    ("drafter", "verify"), [("ngram", "token"), ("model", "token"), ("model", "coupling")]
)
def test_samples_follow_the_law_of_generate(drafter: str, verify: str) -> None:
    """Chi-square on the joint law of two tokens, n = 1,000 rows of one call, seed 0.

    The false-alarm rate is 1e-4 a case, 3e-4 in all.
    """
    model, draft = five_tokens(), small("gpt2", 5)
    prompt, n = (1, 2, 1, 2, 1), 1000
    expected = exact_law(model, prompt, 2)
    options = {"draft_model": draft} if drafter == "model" else {"drafter": drafter}
    found = model.generate(
        ids(prompt),
        do_sample=True,
        max_new_tokens=2,
        num_return_sequences=n,
        pad_token_id=0,
        **WARPERS,
        custom_generate=speculate(**options, verify=verify, num_draft_tokens=2, seed=0),
    )
    counts = Counter(tuple(row) for row in found[:, len(prompt) :].tolist())
    assert all(expected[tokens] > 0 for tokens in counts)
    assert _chi_square_p(counts, expected, n) > 1e-4
    # The test sees what it should: the draft's own law is another one.
    if drafter == "model":
        other = exact_law(draft, prompt, 2)
        assert _chi_square_p(counts, other, n) < 1e-4


def _chi_square_p(
    counts: Counter[tuple[int, ...]], law: dict[tuple[int, ...], float], n: int
) -> float:
    """The chance of a fit as bad, cells with less than 5 expected pooled."""
    large = [cell for cell, p in law.items() if n * p >= 5]
    cells = [(counts[cell], n * law[cell]) for cell in large]
    cells.append((n - sum(c for c, _ in cells), n - sum(e for _, e in cells)))
    statistic = sum((c - e) ** 2 / e for c, e in cells if e > 1e-6)
    if any(c and e <= 1e-6 for c, e in cells):
        return 0.0
    freedom = sum(e > 1e-6 for _, e in cells) - 1
    half = torch.tensor([freedom / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def test_the_chi_square_is_right() -> None:
    # Of one degree of freedom: 2 * (1 - Phi(z)).
    counts = Counter({(0,): 60, (1,): 40})
    expected = math.erfc(2 / math.sqrt(2))
    assert _chi_square_p(counts, {(0,): 0.5, (1,): 0.5}, 100) == pytest.approx(expected)


def sampled(
    model: Any, speculation: Any = None, rows: Any = None, **options: Any
) -> list[list[int]]:
    call = {
        "input_ids": ids(REPETITIVE),
        "do_sample": True,
        "max_new_tokens": 10,
        "pad_token_id": 0,
        **(rows or {}),
        **options,
    }
    result: list[list[int]] = model.generate(**call, custom_generate=speculation).tolist()
    return result


def test_torchs_seed_makes_samples_come_again() -> None:
    model = tiny("llama")
    speculation = speculate(draft_model=tiny("gpt2"))
    texts = []
    for seed in (*range(5), *range(5)):
        transformers.set_seed(seed)
        texts.append(sampled(model, speculation, num_return_sequences=2))
    assert texts[:5] == texts[5:]
    assert len({str(text) for text in texts}) == 5
    # Without a seed of its own each call goes on in torch's generator.
    torch.manual_seed(0)
    assert sampled(model, speculation) != sampled(model, speculation)


def test_a_seed_of_its_own_leaves_torchs_generator_alone() -> None:
    model = tiny("llama")
    before = torch.get_rng_state()
    first = sampled(model, speculate(seed=7))
    assert sampled(model, speculate(seed=7)) == first
    assert sampled(model, speculate(seed=8)) != first
    model.generate(ids(REPETITIVE), max_new_tokens=8, custom_generate=speculate())
    assert torch.equal(torch.get_rng_state(), before)


def test_coupled_samples_do_not_depend_on_the_drafter() -> None:
    model = tiny("llama")
    texts = [
        sampled(model, speculate(**options, verify="coupling", seed=3), temperature=0.9, top_p=0.8)
        for options in (
            {"drafter": "none"},
            {"drafter": "ngram"},
            {"draft_model": tiny("gpt2")},
            {"draft_model": model, "num_draft_tokens": 8},
        )
    ]
    assert all(text == texts[0] for text in texts)


def test_samples_of_one_prompt_are_independent_and_grouped_as_in_generate() -> None:
    model = tiny("llama")
    found = sampled(
        model, speculate(seed=0), padded((7, 8, 9), (5,)), num_return_sequences=3, temperature=2.0
    )
    assert [row[:3] for row in found] == [[7, 8, 9]] * 3 + [[0, 0, 5]] * 3
    assert len({tuple(row[3:]) for row in found}) == 6


def test_several_greedy_sequences_are_as_in_generate() -> None:
    model = tiny("llama")
    call = {"input_ids": ids(REPETITIVE), "max_new_tokens": 8, "num_return_sequences": 1}
    plain = model.generate(**call)
    assert model.generate(**call, custom_generate=speculate()).tolist() == plain.tolist()


@pytest.mark.statistical
@pytest.mark.parametrize(("target", "draft"), [(7, 5), (5, 7)])
def test_padded_vocabularies_sample_the_targets_law(target: int, draft: int) -> None:
    """Chi-square on two tokens, n = 800, seed 1; false-alarm rate 1e-4 a case, 2e-4 in all."""
    model, drafting = small("llama", target), small("gpt2", draft)
    prompt, n = (1, 2, 4), 800
    with torch.no_grad():
        first = model(ids(prompt), use_cache=False).logits[0, -1].softmax(-1)
        rows = ids(*[(*prompt, token) for token in range(target)])
        second = model(rows, use_cache=False).logits[:, -1].softmax(-1)
    expected = {
        (a, b): float(first[a] * second[a, b])
        for a, b in itertools.product(range(target), repeat=2)
    }
    found = model.generate(
        ids(prompt),
        do_sample=True,
        top_k=0,
        max_new_tokens=2,
        num_return_sequences=n,
        pad_token_id=0,
        custom_generate=speculate(draft_model=drafting, num_draft_tokens=2, seed=1),
    )
    counts = Counter(tuple(row) for row in found[:, len(prompt) :].tolist())
    assert _chi_square_p(counts, expected, n) > 1e-4
