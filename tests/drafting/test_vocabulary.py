"""Tokens as bytes, shared tokens, and a text that is written in two vocabularies."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from paceline.drafting.vocabulary import (
    LOOK_BEHIND,
    Piece,
    Transcript,
    Vocabulary,
    shared_tokens,
    token_bytes,
    vocabulary_of,
)
from tests import tiny_tokenizers

FAITHFUL = ("byte_level", "sentencepiece", "metaspace")
TEXTS = (
    "the stop",
    "stop the END.",
    "你好",
    "好 é the",
    "🙂🙂 the",
    "  the\n\n a",
    "stop",
    "\n",
    "a",
    "ＡÅ",  # what a normaliser would change
)


@pytest.fixture(scope="module", params=tiny_tokenizers.ALL)
def any_tokenizer(request: pytest.FixtureRequest) -> Any:
    return tiny_tokenizers.ALL[request.param]()


def vocabulary(name: str, **options: Any) -> Vocabulary:
    return Vocabulary(tiny_tokenizers.ALL[name](**options))


def joined(pieces: list[Piece]) -> bytes:
    return b"".join(piece.text or b"" for piece in pieces)


def whole(first: Vocabulary, second: Vocabulary) -> dict[int, int]:
    shared = shared_tokens(first, second, 10**6, 10**6)
    return dict(zip(shared.ours, shared.theirs, strict=True))


class TestBytes:
    @pytest.mark.parametrize("name", FAITHFUL)
    def test_tokens_put_together_are_the_text(self, name: str) -> None:
        """As the tokenizer's own decoder has it, but for the space before the first word."""
        tokenizer = tiny_tokenizers.ALL[name]()
        vocab = Vocabulary(tokenizer)
        for text in TEXTS:
            ids = tokenizer.encode(text, add_special_tokens=False)
            said = b"".join(vocab.texts[token] for token in ids).decode()
            assert said in (text, " " + text)

    def test_every_byte_has_its_letter(self) -> None:
        from tokenizers.pre_tokenizers import ByteLevel

        vocab = vocabulary("byte_level")
        assert sorted(text for text in vocab.texts.values() if len(text) == 1) == [
            bytes([byte]) for byte in range(256)
        ]
        spell = ByteLevel(add_prefix_space=False, use_regex=False)
        for text in TEXTS:
            assert token_bytes(spell.pre_tokenize_str(text)[0][0], "Ġ") == text.encode()

    def test_word_pieces(self) -> None:
        vocab = vocabulary("wordpiece")
        assert {b" the", b"n", b" n", b"'"} <= set(vocab.ids)

    def test_special_tokens_are_no_text_and_added_ones_are(self, any_tokenizer: Any) -> None:
        vocab = Vocabulary(any_tokenizer)
        assert vocab.is_special(any_tokenizer.eos_token_id)
        assert not set(vocab.specials.values()) & set(vocab.texts)
        tool = any_tokenizer.convert_tokens_to_ids("<tool>")
        assert vocab.texts[tool] == b"<tool>"

    def test_a_vocabulary_is_read_once(self, any_tokenizer: Any) -> None:
        assert vocabulary_of(any_tokenizer) is vocabulary_of(any_tokenizer)

    def test_the_start_of_a_text(self) -> None:
        tokenizer = tiny_tokenizers.sentencepiece(add_bos=True)
        assert Vocabulary(tokenizer).start == (tokenizer.bos_token_id,)
        assert vocabulary("sentencepiece").start == ()


class TestShared:
    @pytest.mark.parametrize("pair", list(itertools.product(tiny_tokenizers.ALL, repeat=2)))
    def test_one_to_one_and_of_one_text(self, pair: tuple[str, str]) -> None:
        first, second = (vocabulary(name) for name in pair)
        shared = shared_tokens(first, second, 10**6, 10**6)
        assert len(set(shared.ours)) == len(set(shared.theirs)) == len(shared.ours) > 5
        for ours, theirs in zip(shared.ours, shared.theirs, strict=True):
            if first.is_special(ours):
                assert second.is_special(theirs)
            else:
                assert first.texts[ours] == second.texts[theirs]

    def test_a_vocabulary_with_itself(self) -> None:
        """Every token but the second spellings of a byte, and tokens of no text."""
        vocab = vocabulary("byte_level")
        same = whole(vocab, vocab)
        assert all(ours == theirs for ours, theirs in same.items())
        assert set(same) == {*vocab.ids.values(), *vocab.specials.values()}

    def test_a_letter_is_preferred_to_its_byte(self) -> None:
        tokenizer = tiny_tokenizers.sentencepiece()
        assert Vocabulary(tokenizer).ids[b"a"] == tokenizer.convert_tokens_to_ids("a")

    def test_leading_spaces_have_different_signs(self) -> None:
        first, second = tiny_tokenizers.byte_level(), tiny_tokenizers.sentencepiece()
        same = whole(Vocabulary(first), Vocabulary(second))
        for ours, theirs in (("Ġthe", "▁the"), ("Ġ", "▁"), ("é"[:1].replace("é", "Ã©"), "é")):
            a, b = first.convert_tokens_to_ids(ours), second.convert_tokens_to_ids(theirs)
            assert same[a] == b

    def test_specials_by_name_and_the_end_by_its_role(self) -> None:
        first = tiny_tokenizers.byte_level()
        second = tiny_tokenizers.sentencepiece()
        second.add_special_tokens({"eos_token": "<end>"})
        same = whole(Vocabulary(first), Vocabulary(second))
        user = first.convert_tokens_to_ids("<|user|>")
        assert same[user] == second.convert_tokens_to_ids("<|user|>")
        # "</s>" is still a special token of both, so it keeps its like.
        assert same[first.eos_token_id] == second.convert_tokens_to_ids("</s>")
        third = PreTrainedTokenizerFast(
            tokenizer_object=tiny_tokenizers.wordpiece().backend_tokenizer, eos_token="[UNK]"
        )
        bare = {text: n for text, n in Vocabulary(third).specials.items() if text != "</s>"}
        vocab = Vocabulary(third)
        vocab.specials = bare
        assert whole(Vocabulary(first), vocab)[first.eos_token_id] == third.eos_token_id

    def test_ids_beyond_the_logits_are_left_out(self) -> None:
        vocab = vocabulary("byte_level")
        shared = shared_tokens(vocab, vocab, 100, 50)
        assert max(shared.ours) < 50
        assert max(shared.theirs) < 50


class TestEncode:
    @pytest.mark.parametrize("name", tiny_tokenizers.ALL)
    @pytest.mark.parametrize("text", TEXTS)
    def test_pieces_cover_the_text(self, name: str, text: str) -> None:
        tokenizer = tiny_tokenizers.ALL[name]()
        pieces = Vocabulary(tokenizer).encode(text.encode())
        assert joined(pieces) == (text.encode() if pieces else b"")
        if name in FAITHFUL:
            ids = tokenizer.encode(text, add_special_tokens=False)
            assert [piece.token for piece in pieces] in (ids, ids[1:])

    @pytest.mark.parametrize("name", FAITHFUL)
    def test_bytes_that_are_no_text(self, name: str) -> None:
        vocab = vocabulary(name)
        for text in (b"\xe4\xbd", b"the\xff\xfe stop", "🙂".encode()[:3], b"\xbd\xa0 the"):
            pieces = vocab.encode(text)
            assert joined(pieces) == text
            assert b"".join(vocab.texts[piece.token] for piece in pieces) in (
                text,
                b" " + text,
                text.replace(b" stop", b"  stop"),
                text.replace(b" the", b"  the"),
            )

    def test_amid_a_word(self) -> None:
        """A tokenizer that puts a space before a text is told that there is none."""
        words = {word: number for number, word in enumerate(["▁", "o", "p", "▁o", "\n"])}
        core = Tokenizer(models.BPE(vocab=words, merges=[("▁", "o")]))
        core.pre_tokenizer = pre_tokenizers.Metaspace()
        vocab = Vocabulary(PreTrainedTokenizerFast(tokenizer_object=core))
        assert [vocab.texts[piece.token] for piece in vocab.encode(b"op")] == [b" o", b"p"]
        assert [vocab.texts[piece.token] for piece in vocab.encode_amid(b"op")] == [b"o", b"p"]
        for pieces in (vocab.encode(b"op"), vocab.encode_amid(b"op")):
            assert joined(pieces) == b"op"


class TestGoOn:
    @pytest.mark.parametrize("name", FAITHFUL)
    @pytest.mark.parametrize("text", TEXTS)
    def test_any_split_gives_the_text(self, name: str, text: str) -> None:
        vocab, data = vocabulary(name), text.encode()
        for cut in range(len(data) + 1):
            written = vocab.encode(data[:cut]) if cut else []
            back, more = vocab.go_on(written, data[cut:])
            assert 0 <= back <= len(written)
            assert joined([*written[: len(written) - back], *more]) == data

    def test_a_word_that_goes_on_is_written_anew(self) -> None:
        vocab = vocabulary("byte_level")
        assert [piece.text for piece in vocab.encode(b"the st")] == [b"the", b" ", b"st"]
        back, more = vocab.go_on(vocab.encode(b"the st"), b"op")
        assert (back, [piece.text for piece in more]) == (1, [b"stop"])

    def test_what_is_final_elsewhere_stays(self) -> None:
        vocab = vocabulary("byte_level")
        written = vocab.encode(b"the stop" * 10)
        back, more = vocab.go_on(written, b" the")
        assert (back, [piece.text for piece in more]) == (0, [b" ", b"the"])

    def test_it_looks_behind_no_further_than_a_special_token(self) -> None:
        vocab = vocabulary("byte_level")
        written = [*vocab.encode(b"the st"), Piece(vocab.specials["<s>"], None)]
        assert vocab.go_on(written, b"op")[0] == 0

    def test_it_looks_behind_a_few_tokens(self) -> None:
        vocab = vocabulary("byte_level")
        written = [Piece(vocab.ids[bytes([b])], bytes([b])) for b in b" st" * 20]
        back, more = vocab.go_on(written, b"op")
        assert back <= LOOK_BEHIND
        assert joined([*written[: len(written) - back], *more]) == b" st" * 20 + b"op"


class TestTranscript:
    @pytest.mark.parametrize("pair", list(itertools.permutations(FAITHFUL, 2)))
    @pytest.mark.parametrize("step", [1, 2, 5, 100])
    def test_a_text_in_steps(self, pair: tuple[str, str], step: int) -> None:
        source, written = (tiny_tokenizers.ALL[name]() for name in pair)
        first, second = Vocabulary(source), Vocabulary(written)
        text = "the stop 你好 é🙂 the END.\n  stop"
        ids = source.encode(text, add_special_tokens=False)
        transcript = Transcript(first, second, whole(first, second))
        for start in range(0, len(ids), step):
            before = transcript.tokens
            kept = transcript.add(ids[start : start + step])
            assert transcript.tokens[:kept] == before[:kept]
            said = b"".join(first.texts[token] for token in ids[: start + step])
            assert joined(transcript.pieces) == said, "also amid a character"
        if pair[1] != "metaspace":  # which joins no bytes
            assert written.decode(transcript.tokens).strip() == text.strip()

    def test_special_tokens(self) -> None:
        source, written = tiny_tokenizers.byte_level(), tiny_tokenizers.sentencepiece(add_bos=True)
        source.add_special_tokens({"additional_special_tokens": ["<only here>"]})
        first, second = Vocabulary(source), Vocabulary(written)
        ids = source.encode("<s><|user|>the stop<|end|><only here>the", add_special_tokens=False)
        transcript = Transcript(first, second, whole(first, second))
        transcript.add(ids)
        text = written.decode(transcript.tokens).replace(" ", "")
        assert text == "<s><|user|>thestop<|end|><onlyhere>the"
        assert transcript.tokens[0] == written.bos_token_id, "its own start, once"
        assert transcript.tokens.count(written.bos_token_id) == 1
        named = {written.convert_tokens_to_ids(name) for name in ("<|user|>", "<|end|>")}
        assert named <= set(transcript.tokens)

    def test_what_was_guessed_stays_as_it_is(self) -> None:
        """Accepted draft tokens are not encoded again, even where the tokenizer has fewer."""
        vocab = vocabulary("byte_level")
        letters = [vocab.ids[bytes([b])] for b in b" stop"]
        the = vocab.ids[b"the"]
        transcript = Transcript(vocab, vocab, whole(vocab, vocab))
        transcript.add([the])
        assert transcript.add(letters, letters) == 1
        assert transcript.tokens == [the, *letters]
        # Where the text goes another way, the rest is encoded.
        assert transcript.add([vocab.ids[b" the"]], letters[:2]) <= 6
        assert joined(transcript.pieces) == b"the stop the"

    def test_a_guess_that_was_accepted_in_part(self) -> None:
        source, written = vocabulary("sentencepiece"), vocabulary("byte_level")
        guess = [piece.token for piece in written.encode(b" the stop")]
        transcript = Transcript(source, written, whole(source, written))
        transcript.add([source.ids[b"a"]])
        kept = transcript.add([source.ids[b" the"], source.ids[b"a"]], guess)
        assert kept == 1
        assert transcript.tokens[1] == guess[0]
        assert joined(transcript.pieces) == b"a thea"

    def test_the_end_of_a_text_may_be_guessed(self) -> None:
        source, written = vocabulary("byte_level"), vocabulary("sentencepiece")
        same = whole(source, written)
        transcript = Transcript(source, written, same)
        guess = [written.ids[b" the"], written.specials["</s>"]]
        transcript.add([source.ids[b" the"], source.specials["</s>"]], guess)
        assert transcript.tokens == guess

    def test_a_long_text_that_loses_something_stays_quick(self) -> None:
        """A tokenizer that knows no capitals: each word that has some is one piece."""
        source, written = vocabulary("byte_level"), vocabulary("wordpiece")
        transcript = Transcript(source, written, whole(source, written))
        for _ in range(50):
            transcript.add([piece.token for piece in source.encode(b" the STOP")])
        assert joined(transcript.pieces) == b" the STOP" * 50
        assert max(len(piece.text or b"") for piece in transcript.pieces) < 20
