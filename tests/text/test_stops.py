"""The oracle decodes the whole after each token and searches it."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline.text import IncrementalDetokenizer, TextStream
from tests import tiny_tokenizers

BYTE_LEVEL = tiny_tokenizers.byte_level()
SENTENCEPIECE = tiny_tokenizers.sentencepiece()


def whole(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=True)


def oracle(tokenizer, tokens, stops, min_tokens=0):
    """(length of the answer, its text): cut at the first stop string, completed late enough."""
    before = ""
    for length in range(1, len(tokens) + 1):
        text = whole(tokenizer, tokens[:length])
        known = max(n for n in range(len(before) + 1) if text.startswith(before[:n]))
        found = [
            (begin + len(stop), begin)
            for stop in stops
            for begin in range(len(text))
            if text.startswith(stop, begin) and begin + len(stop) > known
        ]
        if found and length >= min_tokens:
            return length, text[: min(found)[1]]
        before = text
    return None, before


def decode_in_rounds(tokenizer, tokens, stops, sizes, min_tokens=0):
    """What the engine does with a rule, and a consumer with the tokens that it commits."""
    stream = TextStream(tokenizer, stops, min_tokens)
    shown, old = "", 0
    while old < len(tokens):
        answer = tokens[: old + next(sizes)]
        cut = stream(answer, max(old, min_tokens - 1)) if len(answer) >= min_tokens else None
        assert cut is None or old < cut <= len(answer)
        shown += stream.feed(answer[old:cut])
        assert shown == stream.text
        if cut is not None:
            return cut, shown + stream.finish(), stream.stop
        # Nothing is held back for longer than a stop string could need it.
        sure = len(whole(tokenizer, answer).rstrip("\ufffd")) - max(map(len, stops)) + 1
        assert len(shown) >= sure or tokenizer is SENTENCEPIECE
        old = len(answer)
    return None, shown + stream.finish(), stream.stop


def check(tokenizer, tokens, stops, sizes, min_tokens=0):
    length, text = oracle(tokenizer, tokens, stops, min_tokens)
    cut, shown, stop = decode_in_rounds(tokenizer, tokens, stops, sizes, min_tokens)
    assert (cut, shown) == (length, text)
    assert (stop is None) == (length is None)


def constant(size):
    return iter(lambda: size, None)


@pytest.mark.parametrize("offset", range(16))
@pytest.mark.parametrize("stop", ["stop", "the stop", "\n", "好🙂", "END\n\nEND"])
def test_a_stop_string_at_every_offset_of_a_block(offset, stop):
    text = "." * (16 + offset) + stop + "xyz" * 12
    tokens = BYTE_LEVEL.encode(text)
    check(BYTE_LEVEL, tokens, [stop], constant(16))
    length, shown, found = decode_in_rounds(BYTE_LEVEL, tokens, [stop], constant(16))
    assert shown == "." * (16 + offset)
    assert stop in whole(BYTE_LEVEL, tokens[:length])
    assert stop not in whole(BYTE_LEVEL, tokens[: length - 1])
    assert found == stop


def test_a_stop_string_within_one_token():
    tokens = BYTE_LEVEL.convert_tokens_to_ids(["x", "Ġstop", "y"])
    assert TextStream(BYTE_LEVEL, "to")(tokens, 0) == 2
    stream = TextStream(BYTE_LEVEL, "to")
    assert [stream.feed([token]) for token in tokens] == ["x", " s", ""]


@pytest.mark.parametrize(
    ("stops", "text", "length", "shown"),
    [
        (["cd", "b"], "abcd", 2, "a"),  # the one completed first, not the one listed first
        (["abc", "b"], "abcd", 2, "a"),  # nor the one that began first
        (["c", "bc", "abc"], "xabcd", 4, "x"),  # of those completed together, the longest
        (["abd", "bcd"], "abcd", 4, "a"),
        (["aab"], "aaab", 4, "a"),  # it may begin within what looked like its beginning
        (["abab"], "abaabab", 7, "aba"),
    ],
)
def test_several_stop_strings(stops, text, length, shown):
    tokens = list(BYTE_LEVEL.convert_tokens_to_ids(list(text)))
    for order in (stops, stops[::-1]):
        for size in (1, 2, 16):
            cut, seen, _ = decode_in_rounds(BYTE_LEVEL, tokens, order, constant(size))
            assert (cut, seen) == (length, shown)


stop_texts = st.lists(st.text("ab\n🙂é", min_size=1, max_size=4), min_size=1, max_size=3)


@given(text=st.text("ab\n🙂é", max_size=30), stops=stop_texts, data=st.data())
def test_any_text_and_stops_byte_by_byte(text, stops, data):
    symbols = BYTE_LEVEL.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    tokens = BYTE_LEVEL.convert_tokens_to_ids([s for part in symbols for s in part[0]])
    rng = random.Random(data.draw(st.integers(0, 100)))
    min_tokens = data.draw(st.integers(0, 12))
    check(BYTE_LEVEL, tokens, stops, iter(lambda: rng.randint(1, 6), None), min_tokens)


@given(data=st.data())
def test_any_tokens_with_byte_tokens_among_them(data):
    names = ["<0x0A>", "<0xE2>", "<0x82>", "<0xAC>", "a", "▁a", "▁", "</s>", "\n"]
    few = st.sampled_from(SENTENCEPIECE.convert_tokens_to_ids(names))
    tokens = data.draw(st.lists(few, max_size=14))
    stops = data.draw(
        st.lists(
            st.sampled_from(["\n", "\n\n", "a", " a", "€", "a\na", "aa"]), min_size=1, max_size=3
        )
    )
    rng = random.Random(data.draw(st.integers(0, 100)))
    min_tokens = data.draw(st.integers(0, 6))
    check(SENTENCEPIECE, tokens, stops, iter(lambda: rng.randint(1, 6), None), min_tokens)


def test_a_byte_token_ends_the_answer_at_once():
    tokens = SENTENCEPIECE.convert_tokens_to_ids(["a", "<0x0A>", "b"])
    assert TextStream(SENTENCEPIECE, "\n")(tokens, 0) == 2


def test_text_before_the_stop_string_that_was_not_yet_final():
    names = ["a", "<0xE2>", "<0x82>", "<0xAC>", "<0x0A>", "b"]
    tokens = SENTENCEPIECE.convert_tokens_to_ids(names)
    assert decode_in_rounds(SENTENCEPIECE, tokens, ["\n"], constant(2)) == (5, "a€", "\n")


def test_what_may_begin_a_stop_string_is_held_back():
    stream = TextStream(BYTE_LEVEL, ["END"])
    feed = [stream.feed(BYTE_LEVEL.encode(part)) for part in ("a E", "N", "x EN")]
    assert feed == ["a ", "", "ENx "]
    assert stream.finish() == "EN"
    assert stream.text == "a ENx EN"
    assert stream.stop is None


def test_without_stops_text_comes_at_once():
    stream = TextStream(BYTE_LEVEL)
    assert [stream.feed([token]) for token in BYTE_LEVEL.encode("a🙂")] == ["a", "🙂"]
    assert stream.finish() == ""


def test_tokens_behind_a_stop_string_change_nothing():
    stream = TextStream(BYTE_LEVEL, "b")
    assert stream.feed(BYTE_LEVEL.encode("abc")) == "a"
    assert stream.feed(BYTE_LEVEL.encode("d")) == ""
    assert stream.finish() == ""
    assert stream.text == "a"


def test_a_stop_string_before_min_tokens_is_text():
    tokens = BYTE_LEVEL.convert_tokens_to_ids(list("a.b.c"))
    assert TextStream(BYTE_LEVEL, ".")(tokens, 2) == 4
    stream = TextStream(BYTE_LEVEL, ".", min_tokens=3)
    assert stream.feed(tokens) == "a.b"


@pytest.mark.parametrize("stops", ["", [""], ["a", ""], [3], [None]])
def test_a_stop_string_must_be_a_text(stops):
    with pytest.raises(InvalidInput, match="at least one character"):
        TextStream(BYTE_LEVEL, stops)


def test_a_rule_serves_one_answer():
    rule = TextStream(BYTE_LEVEL, "b")
    rule(BYTE_LEVEL.encode("aaaa"), 0)
    with pytest.raises(InvalidInput, match="one answer"):
        rule(BYTE_LEVEL.encode("a"), 0)


def test_each_token_is_turned_into_text_once(monkeypatch):
    """By the rule, which sees tokens before they are committed; `feed` only takes them over."""
    scanned = []
    feed = IncrementalDetokenizer.feed
    monkeypatch.setattr(
        IncrementalDetokenizer, "feed", lambda self, ids: scanned.extend(ids) or feed(self, ids)
    )
    tokens = BYTE_LEVEL.encode("the stop is near END of it")
    cut, shown, stop = decode_in_rounds(BYTE_LEVEL, tokens, ["END"], constant(4))
    assert (shown, stop) == ("the stop is near ", "END")
    assert scanned == tokens[:cut]


@given(text=st.text("ab\n🙂é", min_size=1, max_size=20), data=st.data())
def test_an_answer_cut_within_what_the_rule_has_seen(text, data):
    """An end token, say, that stands before tokens in which the rule found nothing."""
    symbols = BYTE_LEVEL.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)
    tokens = BYTE_LEVEL.convert_tokens_to_ids([s for part in symbols for s in part[0]])
    kept = data.draw(st.integers(1, len(tokens)))
    stream = TextStream(BYTE_LEVEL, ["zz"])
    assert stream(tokens, 0) is None
    assert stream.feed(tokens[:kept]) + stream.finish() == whole(BYTE_LEVEL, tokens[:kept])


@pytest.mark.model
@pytest.mark.parametrize("stop", ["\n\n", "return x", " 世界", "👩‍👩‍👧", "e"])
def test_smollm2(smollm2_tokenizer, stop):
    text = "A café.\n\ndef f(x):\n    return x  # 你好 世界 👩‍👩‍👧 done"
    tokens = smollm2_tokenizer.encode(text)
    for size in (1, 3, 16):
        check(smollm2_tokenizer, tokens, [stop], constant(size))
        check(smollm2_tokenizer, tokens, [stop, "zzz", "x  #"], constant(size))
