"""The oracle is `tokenizer.decode` of the whole."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.errors import InvalidInput
from paceline.text import IncrementalDetokenizer
from tests import tiny_tokenizers

TOKENIZERS = {name: make() for name, make in tiny_tokenizers.ALL.items()}


def whole(tokenizer, tokens):
    return tokenizer.decode(tokens, skip_special_tokens=True)


def hard_tokens(tokenizer):
    """Tokens that make trouble: parts of characters, spaces, specials, no token at all."""
    texts = ["<0xE2>", "<0xAC>", "<0x0A>", "â", "Ĥ", "¬", "", "▁", "▁▁", "▁a", "Ġ", "a", "n't", "."]
    vocab = tokenizer.get_vocab()
    tokens = [vocab[text] for text in texts if text in vocab]
    return [*tokens, tokenizer.eos_token_id, len(tokenizer) + 5]


def check(tokenizer, tokens, sizes):
    detokenizer, text, position = IncrementalDetokenizer(tokenizer), "", 0
    everything = whole(tokenizer, tokens)
    while position < len(tokens):
        block = tokens[position : position + next(sizes)]
        position += len(block)
        text += detokenizer.feed(block)
        assert everything.startswith(text), "a piece was not final"
        assert text + detokenizer.pending == whole(tokenizer, tokens[:position])
    assert text + detokenizer.finish() == everything
    assert detokenizer.pending == ""


class Counting:
    """A tokenizer that counts the tokens it decodes."""

    def __init__(self, tokenizer):
        self.tokenizer, self.decoded = tokenizer, 0
        self.clean_up_tokenization_spaces = False

    def convert_ids_to_tokens(self, token):
        return self.tokenizer.convert_ids_to_tokens(token)

    def decode(self, ids, **options):
        self.decoded += len(ids)
        return self.tokenizer.decode(ids, **options)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_pieces_make_the_whole_for_any_tokens_and_blocks(name, data):
    tokenizer = TOKENIZERS[name]
    any_token = st.integers(0, len(tokenizer) - 1)
    tokens = data.draw(st.lists(st.sampled_from(hard_tokens(tokenizer)) | any_token, max_size=40))
    rng = random.Random(data.draw(st.integers(0, 1000)))
    check(tokenizer, tokens, iter(lambda: rng.randint(1, 6), None))


@pytest.mark.parametrize("name", TOKENIZERS)
def test_every_short_stream_of_hard_tokens(name):
    tokenizer = TOKENIZERS[name]
    for tokens in itertools.product(hard_tokens(tokenizer), repeat=3):
        check(tokenizer, list(tokens), itertools.repeat(1))


@pytest.mark.parametrize("name", TOKENIZERS)
@pytest.mark.parametrize("size", [1, 3, 16])
def test_long_streams_of_any_tokens(name, size):
    tokenizer, rng = TOKENIZERS[name], random.Random(size)
    tokens = [rng.randrange(len(tokenizer)) for _ in range(1500)]
    check(tokenizer, tokens, iter(lambda: size, None))


@pytest.mark.parametrize(
    "text", ["a🙂é", "你好, 世界", "e\u0301 👩‍👩‍👧 \U0010ffff", "plain", " \n\t x", "x\ufffd"]
)
def test_text_comes_back_byte_by_byte(text):
    tokenizer = TOKENIZERS["byte_level"]
    symbols = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)[0][0]
    tokens = tokenizer.convert_tokens_to_ids(list(symbols))
    detokenizer = IncrementalDetokenizer(tokenizer)
    pieces = [detokenizer.feed([token]) for token in tokens]
    assert "".join(pieces) + detokenizer.finish() == text
    # Each character comes at its last byte, none earlier and none later.
    whole_characters = [piece for piece in pieces if piece]
    assert whole_characters[: len(text) - 1] == list(text)[: len(text) - 1]


@pytest.mark.parametrize("offset", [1, 2, 3])
@pytest.mark.parametrize("character", ["é", "€", "🙂"])
def test_blocks_that_always_end_within_a_character(character, offset):
    # The text is never complete, so the window must be shortened somewhere between characters.
    tokenizer, size = TOKENIZERS["byte_level"], len(character.encode())
    text = character * 500
    symbols = tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)[0][0]
    tokens = tokenizer.convert_tokens_to_ids(list(symbols))
    counting = Counting(tokenizer)
    detokenizer = IncrementalDetokenizer(counting)
    pieces = [detokenizer.feed(tokens[: offset % size])]
    pieces += [
        detokenizer.feed(tokens[at : at + size]) for at in range(offset % size, len(tokens), size)
    ]
    assert "".join(pieces) + detokenizer.finish() == text
    assert counting.decoded / len(tokens) < 200


def test_tokens_without_text_within_a_character():
    tokenizer = TOKENIZERS["byte_level"]
    tokens = tokenizer.convert_tokens_to_ids(["a", "â", *[""] * 150, "Ĥ", *[""] * 150, "¬", "b"])
    check(tokenizer, tokens, itertools.repeat(1))


def test_a_spoiled_run_of_bytes_is_not_shown_early():
    # Decoded alone the first three are "€"; the fourth turns all four into U+FFFD.
    tokenizer = TOKENIZERS["sentencepiece"]
    tokens = tokenizer.convert_tokens_to_ids(["a", "<0xE2>", "<0x82>", "<0xAC>", "<0xF0>", "b"])
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.feed([token]) for token in tokens] == [
        "a",
        "",
        "",
        "",
        "",
        "\ufffd" * 4 + "b",
    ]


def test_bytes_at_the_end_come_at_the_end():
    tokenizer = TOKENIZERS["sentencepiece"]
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert (
        detokenizer.feed(tokenizer.convert_tokens_to_ids(["a", "<0xE2>", "<0x82>", "<0xAC>"]))
        == "a"
    )
    assert detokenizer.pending == "€"
    assert detokenizer.finish() == "€"


def test_the_space_behind_a_skipped_token_stays():
    tokenizer = TOKENIZERS["sentencepiece"]
    tokens = tokenizer.convert_tokens_to_ids(["▁a", "</s>", "</s>", "▁the"])
    detokenizer = IncrementalDetokenizer(tokenizer)
    assert [detokenizer.feed([token]) for token in tokens] == ["a", "", "", " the"]


def test_clean_up_is_the_tokenizers_own():
    tokenizer = TOKENIZERS["wordpiece"]
    tokens = tokenizer.convert_tokens_to_ids(["the", "do", "n't", ".", "b"])
    assert whole(tokenizer, tokens) == "the don't. b"
    check(tokenizer, tokens, iter(lambda: 1, None))


@pytest.mark.parametrize(
    ("name", "cycle"),
    [
        ("byte_level", ["t", "h", "e"]),
        ("byte_level", ["Ċ"]),  # nothing but new lines
        ("byte_level", ["Ģ"]),  # nothing but a byte that begins no character
        ("byte_level", ["</s>"]),  # nothing that shows
        ("sentencepiece", ["▁"]),
        ("sentencepiece", ["▁the", "<0x0A>"]),
        ("sentencepiece", ["<0xE2>"]),
        ("metaspace", ["▁▁"]),
    ],
)
def test_the_cost_of_a_token_is_constant(name, cycle):
    counting = Counting(TOKENIZERS[name])
    tokens = TOKENIZERS[name].convert_tokens_to_ids(cycle) * (3000 // len(cycle))
    detokenizer = IncrementalDetokenizer(counting)
    text = "".join(detokenizer.feed([token]) for token in tokens) + detokenizer.finish()
    assert text == whole(TOKENIZERS[name], tokens)
    # At worst the window is decoded twice a token: of up to 128 tokens, 80 on average.
    assert counting.decoded / len(tokens) < 200


def test_nothing_follows_the_end():
    detokenizer = IncrementalDetokenizer(TOKENIZERS["byte_level"])
    detokenizer.finish()
    with pytest.raises(InvalidInput, match="finished"):
        detokenizer.feed([1])


@pytest.mark.model
def test_smollm2(smollm2_tokenizer):
    rng, size = random.Random(0), len(smollm2_tokenizer)
    text = "The naïve café: 你好, 世界! 🙂👩‍👩‍👧 e\u0301\n\n\tdef f(x):\n        return x  # ok"
    streams = [smollm2_tokenizer.encode(text) * 20]
    streams += [[rng.randrange(size) for _ in range(400)] for _ in range(20)]
    streams += [[rng.randrange(280) for _ in range(400)] for _ in range(20)]  # bytes, specials
    for tokens in streams:
        check(smollm2_tokenizer, tokens, iter(lambda: rng.randint(1, 17), None))
