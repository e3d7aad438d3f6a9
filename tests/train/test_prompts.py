"""Prompts: what is thrown out and why, where a user's text begins, going on after a break."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from paceline.errors import InvalidInput
from paceline.train import prompts as module
from paceline.train.prompts import Filter, GivenPrompts, OwnPrompts, Prompt, ngrams, opening_of
from tests import tiny_tokenizers


def of(*texts: str) -> list[Prompt]:
    return [Prompt(text, tuple(range(len(text.split())))) for text in texts]


def test_prompts_that_share_eight_words_in_a_row_are_thrown_out() -> None:
    unseen = "One two, three four five six seven eight nine"
    passes = Filter([unseen])
    shared = "so TWO three four five six seven, eight nine. more"
    seven = "three four five six seven eight nine and more words"
    assert not passes.keeps(*of(shared))
    assert passes.keeps(*of(seven))
    assert passes.thrown_out == {"excluded": 1}


def test_a_short_text_is_excluded_as_a_whole() -> None:
    passes = Filter(["Name a river."])
    assert not passes.keeps(*of("name a RIVER"))
    assert passes.keeps(*of("Please name a river."))


def test_repeated_and_long_prompts_are_counted() -> None:
    passes = Filter(longest=3)
    kept = [passes.keeps(prompt) for prompt in of("a b", "a, B!", "a b c d", "", "c")]
    assert kept == [True, False, False, False, True]
    assert passes.thrown_out == {"seen before": 1, "too long": 1, "too short": 1}


def test_runs_of_words() -> None:
    assert ngrams("a b c d e f g h i") == {tuple("abcdefgh"), tuple("bcdefghi")}
    assert ngrams("...") == set()


def test_given_prompts_go_on_where_they_were() -> None:
    texts = [f"prompt {n // 2}" for n in range(10)]
    whole, _ = GivenPrompts(of(*texts), Filter()).take(10, 0)
    source = GivenPrompts(of(*texts), Filter())
    first, start = source.take(2, 0)
    passes = Filter()
    passes.remember(prompt.text for prompt in first)
    rest, end = GivenPrompts(of(*texts), passes).take(10, start)
    assert [*first, *rest] == whole
    assert len(whole) == 5
    assert end == 10


def test_the_template_says_where_a_user_s_text_begins() -> None:
    words = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE)
    opening = opening_of(words)
    assert words.convert_ids_to_tokens(opening.prefix) == ["<s>", "<|user|>"]
    assert words.convert_ids_to_tokens(opening.ends) == ["<|end|>"]
    prompt = opening.prompt(words, words.encode(" the stop ", add_special_tokens=False))
    assert prompt.text == "the stop"
    assert words.decode(prompt.tokens) == "<s><|user|>the stop<|end|><|assistant|>"


def test_a_model_without_a_template_writes_on() -> None:
    words = tiny_tokenizers.byte_level()
    opening = opening_of(words)
    written = words.encode("the stop", add_special_tokens=False)
    assert opening.prompt(words, written).tokens == (words.bos_token_id, *written)


@pytest.mark.parametrize(
    ("template", "message"),
    [("{{ messages[0].content }}", "does not show"), ("nothing", "does not show")],
)
def test_templates_that_show_nothing(template: str, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        opening_of(tiny_tokenizers.byte_level(chat_template=template))


def test_a_tokenizer_without_a_start_token() -> None:
    words = tiny_tokenizers.byte_level()
    words.bos_token = words.eos_token = None
    with pytest.raises(InvalidInput, match="neither a chat template nor a start token"):
        opening_of(words)


class Script:
    """A target whose candidate n is what a list says, over and over."""

    def __init__(self, words: Any, texts: Sequence[str]) -> None:
        self.words, self.texts = words, texts
        self.asked: list[int] = []

    def __call__(
        self, prefixes: Sequence[Sequence[int]], first: int, ends: frozenset[int]
    ) -> list[list[int]]:
        numbers = range(first, first + len(prefixes))
        self.asked += numbers
        texts = [self.texts[n % len(self.texts)] for n in numbers]
        return [self.words.encode(text, add_special_tokens=False) for text in texts]


def test_own_prompts_are_the_same_after_a_break() -> None:
    words = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE)
    texts = [f"the stop {n if n % 3 else 'again'}" for n in range(30)] + ["x"]

    def source(passes: Filter) -> OwnPrompts:
        return OwnPrompts(words, Script(words, texts), passes, batch=4)

    one = source(Filter())
    whole, start = one.take(5, 0)
    more, end = one.take(5, start)
    passes = Filter()
    passes.remember(prompt.text for prompt in whole)
    assert source(passes).take(5, start) == (more, end)
    assert len({prompt.text for prompt in whole + more}) == 10


def test_a_target_that_has_no_prompts_to_offer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_IN_VAIN", 6)
    words = tiny_tokenizers.byte_level(chat_template=tiny_tokenizers.CHAT_TEMPLATE)
    source = OwnPrompts(words, Script(words, ["the stop", "x"]), Filter(), batch=4)
    with pytest.raises(InvalidInput, match=r"no more prompts .*too short.* --prompts FILE"):
        source.take(2, 0)
