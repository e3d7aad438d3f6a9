"""Two vocabularies side by side: tokens as bytes, shared tokens, and a text in both.

A token is identified with the bytes that it adds to a text, however its tokenizer writes a leading
space (`Ġthe`, `▁the`) or a byte (`Ã`, `<0xC3>`). Exactness does not depend on this module: errors
cost only acceptance. So what a tokenizer loses (case, repeated spaces) is tolerated.

Source: Timor et al. 2502.05202, whose algorithms match tokens by such strings.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

LOOK_BEHIND = 10
"""How many tokens before the end of a text may be re-encoded when it continues (2502.05202)."""

_BYTE = re.compile(r"<0x([0-9A-F]{2})>")
_WORDS = re.compile(r"\s*\S+|\s+")
_SIGNS = ("Ġ", "▁", "##")


class Piece(NamedTuple):
    """A token of a text.

    Args:
        token: its id.
        text: the bytes of its text; None for a special token.
    """

    token: int
    text: bytes | None


class Vocabulary:
    """A tokenizer's tokens as bytes.

    Args:
        tokenizer: one of transformers, or an object with `get_vocab`, `added_tokens_decoder`,
            `encode`.

    Attributes:
        texts: the bytes of each ordinary token, by id.
        specials: the ids of the special tokens, by their text.
        eos: the id of the token that ends a text; None if there is none.
        start: the tokens that every text begins with.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        vocab: Mapping[str, int] = tokenizer.get_vocab()
        added = tokenizer.added_tokens_decoder
        named = {token for token in tokenizer.all_special_tokens if token in vocab}
        self.specials = {
            text: number
            for text, number in vocab.items()
            if text in named or (number in added and added[number].special)
        }
        signs = Counter(text[:2] if text[:2] == "##" else text[:1] for text in vocab)
        sign = max(_SIGNS, key=lambda sign: signs[sign])
        self.texts: dict[int, bytes] = {}
        for text, number in vocab.items():
            if number in added:
                self.texts[number] = text.encode()
            else:
                self.texts[number] = token_bytes(text, sign if signs[sign] else "")
        for number in self.specials.values():
            del self.texts[number]
        self.eos: int | None = tokenizer.eos_token_id
        self._special_ids = frozenset(self.specials.values())
        # Of several tokens with one text the lowest id is used, but a byte token is the last
        # choice: tokenizers only use byte tokens if they have no other.
        self.ids: dict[bytes, int] = {}
        self._bytes: dict[int, int] = {}
        spelled = {number: text for text, number in vocab.items()}
        for number in sorted(self.texts, key=lambda n: (bool(_BYTE.fullmatch(spelled[n])), n)):
            if text_ := self.texts[number]:
                self.ids.setdefault(text_, number)
                if len(text_) == 1:
                    self._bytes[text_[0]] = number
        begins = list(tokenizer.encode("", add_special_tokens=True))[:1]
        bos = getattr(tokenizer, "bos_token_id", None)
        self.start: tuple[int, ...] = tuple(begins) if bos is not None and begins == [bos] else ()

    def is_special(self, token: int) -> bool:
        """Whether a token is not text."""
        return token in self._special_ids

    def encode(self, text: bytes) -> list[Piece]:
        """The tokens of a text, each with its part of the text.

        Bytes that are not UTF-8 become single-byte tokens, if they exist.
        """
        try:
            return self._encode(text.decode())
        except UnicodeDecodeError as error:
            bad = text[error.start : error.end]
            single = [Piece(self._bytes[b], bytes([b])) for b in bad if b in self._bytes]
            if len(single) < len(bad):
                single = []
            before = self._encode(text[: error.start].decode()) if error.start else []
            return [
                *before,
                *single,
                *(self.encode(text[error.end :]) if text[error.end :] else []),
            ]

    def _encode(self, text: str) -> list[Piece]:
        data = text.encode()
        ids = list(self._tokenizer.encode(text, add_special_tokens=False))
        pieces = [Piece(token, self.texts.get(token, b"")) for token in ids]
        written = b"".join(piece.text or b"" for piece in pieces)
        if written == data:
            return pieces
        if written == b" " + data:  # some tokenizers put a space before the first word
            first = pieces[0]
            assert first.text is not None
            rest = [] if first.text == b" " else [Piece(first.token, first.text[1:])]
            return rest + pieces[1:]
        if len(parts := _WORDS.findall(text)) > 1:
            return [piece for part in parts for piece in self._encode(part)]
        # What was lost cannot be assigned token by token: the last one gets all of it.
        return [*(Piece(token, b"") for token in ids[:-1]), *(Piece(t, data) for t in ids[-1:])]

    def encode_amid(self, text: bytes) -> list[Piece]:
        """The tokens of a text that does not begin a word, as far as the tokenizer has them."""
        pieces = self.encode(text)
        if not pieces or self.texts.get(pieces[0].token) == pieces[0].text:
            return pieces
        behind = self.encode(b"\n" + text)
        ends = _ends(behind)
        return behind[ends[1] :] if 1 in ends else pieces

    def go_on(self, written: Sequence[Piece], text: bytes) -> tuple[int, list[Piece]]:
        """How a text continues: how many of its last tokens to remove, and what to append.

        The last few tokens are encoded again with the new text. The new part begins at the last
        position where the old and the new tokens both have a boundary: usually the old end.

        Args:
            written: the text so far.
            text: the text to add.
        """
        window: list[Piece] = []
        for piece in reversed(written[-LOOK_BEHIND:]):
            if piece.text is None:
                break
            window.insert(0, piece)
        while window and _begins_inside(window[0].text):
            del window[0]
        old = b"".join(piece.text or b"" for piece in window)
        new = self.encode(old + text)
        ends = _ends(new)
        for kept in range(len(window), -1, -1):
            end = sum(len(piece.text or b"") for piece in window[:kept])
            if end in ends:
                return len(window) - kept, new[ends[end] :]
        return 0, self.encode(text)  # unreachable: both have a boundary at 0


class SharedTokens(NamedTuple):
    """Tokens that two vocabularies share: `ours[i]` means the same as `theirs[i]`."""

    ours: tuple[int, ...]
    theirs: tuple[int, ...]


def shared_tokens(
    ours: Vocabulary, theirs: Vocabulary, our_size: int, their_size: int
) -> SharedTokens:
    """The tokens with the same text in both, one to one.

    Special tokens are shared if they have the same text; the end-of-text tokens are shared whatever
    they are called.

    Args:
        ours, theirs: the vocabularies.
        our_size, their_size: the number of logits of the models; higher ids are left out.
    """
    pairs = {number: theirs.ids[text] for text, number in ours.ids.items() if text in theirs.ids}
    for text, number in ours.specials.items():
        if text in theirs.specials:
            pairs[number] = theirs.specials[text]
    end, their_end = ours.eos, theirs.eos
    if (
        end is not None
        and their_end is not None
        and not (end in pairs or their_end in pairs.values())
    ):
        pairs[end] = their_end
    kept = sorted((a, b) for a, b in pairs.items() if a < our_size and b < their_size)
    return SharedTokens(tuple(a for a, _ in kept), tuple(b for _, b in kept))


class Transcript:
    """A growing text of one vocabulary, written in another.

    Args:
        source: the vocabulary of the text.
        written: the other one.
        same: ids of tokens that are mapped one to one, including special ones: source to written.

    Attributes:
        pieces: the text so far.
    """

    def __init__(self, source: Vocabulary, written: Vocabulary, same: Mapping[int, int]) -> None:
        self._source, self._written, self._same = source, written, same
        self.pieces: list[Piece] = []
        self._begun = False

    @property
    def tokens(self) -> list[int]:
        """The text so far, as ids."""
        return [piece.token for piece in self.pieces]

    def add(self, tokens: Iterable[int], guess: Sequence[int] = ()) -> int:
        """Append tokens of the source.

        Args:
            tokens: new tokens.
            guess: what was drafted after the text in the written vocabulary. As far as its text
                agrees, it is kept as it is, so that what a model has cached of it stays valid.

        Returns:
            The number of earlier pieces that were kept.
        """
        stayed = len(self.pieces)
        if not self._begun:
            self._begun = True
            self.pieces += [Piece(token, None) for token in self._written.start]
        left = list(guess)
        text = b""
        for token in (*tokens, None):
            if token is not None and not self._source.is_special(token):
                text += self._source.texts.get(token, b"")
                continue
            while left and text and (said := self._written.texts.get(left[0])):
                if not text.startswith(said):
                    break
                self.pieces.append(Piece(left.pop(0), said))
                text = text[len(said) :]
            if text:
                left = []
                back, more = self._written.go_on(self.pieces, text)
                del self.pieces[len(self.pieces) - back :]
                stayed = min(stayed, len(self.pieces))
                self.pieces += more
                text = b""
            if token is not None:
                left = left[1:] if left and left[0] == self._same.get(token) else []
                self._add_special(token)
        return stayed

    def _add_special(self, token: int) -> None:
        same = self._same.get(token)
        if same is None:
            name = next(text for text, n in self._source.specials.items() if n == token)
            self.pieces += self._written.encode(name.encode())
        elif [piece.token for piece in self.pieces] != [same]:  # a start token comes once
            self.pieces.append(Piece(same, None))


_VOCABULARIES: WeakKeyDictionary[Any, Vocabulary] = WeakKeyDictionary()


def vocabulary_of(tokenizer: Any) -> Vocabulary:
    """The vocabulary of a tokenizer, which is read only once."""
    found = _VOCABULARIES.get(tokenizer)
    if found is None:
        found = _VOCABULARIES[tokenizer] = Vocabulary(tokenizer)
    return found


def token_bytes(text: str, sign: str) -> bytes:
    r"""The bytes that a token adds to a text.

    Args:
        text: the token, as its vocabulary spells it.
        sign: the sign for a leading space, "Ġ" (every byte is spelled as a letter) or "▁"; "##"
            marks tokens without one; an empty sign leaves the spelling as it is.

    Example:
        >>> [token_bytes(*pair) for pair in (("Ġthe", "Ġ"), ("▁the", "▁"), ("the", "##"))]
        [b' the', b' the', b' the']
        >>> token_bytes("<0xE4>", "▁"), token_bytes("ä½ł", "Ġ").decode()
        (b'\xe4', '你')
    """
    if sign == "Ġ":
        letters = _byte_letters()
        if all(letter in letters for letter in text):
            return bytes(letters[letter] for letter in text)
        return text.encode()
    if found := _BYTE.fullmatch(text):
        return bytes([int(found[1], 16)])
    if sign == "▁":
        return text.replace("▁", " ").encode()
    if sign == "##":
        return text[2:].encode() if text.startswith("##") else b" " + text.encode()
    return text.encode()


@cache
def _byte_letters() -> dict[str, int]:
    """The letter that encodes each byte in vocabularies like GPT-2's.

    Printable characters encode themselves; the others are moved up, beyond the first 256.
    """
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in plain]
    letters = {chr(byte): byte for byte in plain}
    return letters | {chr(256 + number): byte for number, byte in enumerate(moved)}


def _begins_inside(text: bytes | None) -> bool:
    """Whether a piece begins within a character, or adds nothing that could be re-encoded."""
    return not text or text[0] & 0xC0 == 0x80


def _ends(pieces: Sequence[Piece]) -> dict[int, int]:
    """Where pieces end in their text, and how many there are up to there."""
    ends, end = {0: 0}, 0
    for number, piece in enumerate(pieces, start=1):
        end += len(piece.text or b"")
        ends.setdefault(end, number)
    return ends
