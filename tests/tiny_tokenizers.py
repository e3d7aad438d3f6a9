"""Tokenizers small enough to build in a test, one for each way of turning tokens into text."""

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = ("the", "stop", "END", "é", "你", "好", "🙂", "\n", "  ", ".")
CHAT_TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}"
    "{% if message.role not in ('system', 'user', 'assistant') %}"
    "{{ raise_exception('unknown role ' + message.role) }}{% endif %}"
    "<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def byte_level(**options):
    """Byte-level BPE, as in GPT-2, Llama 3 and Qwen: 256 bytes, some merges, special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {symbol: number for number, symbol in enumerate(alphabet)}
    merges = []
    encode = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    for word in (*WORDS, *(f" {word}" for word in WORDS)):
        symbols = encode.pre_tokenize_str(word)[0][0]
        for length in range(2, len(symbols) + 1):
            if symbols[:length] not in vocab:
                vocab[symbols[:length]] = len(vocab)
                merges.append((symbols[: length - 1], symbols[length - 1]))
    vocab[""] = len(vocab)
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = encode
    tokenizer.decoder = decoders.ByteLevel()
    return _finished(tokenizer, **options)


def sentencepiece(decoder=None, **options):
    """BPE over text with a mark for spaces and `<0xE2>`-like tokens for bytes, as in Llama 2."""
    vocab = {"<unk>": 0} | {f"<0x{byte:02X}>": byte + 1 for byte in range(256)}
    pieces = ["▁", "▁▁", "▁▁▁", *"abcdefghijklmnopqrstuvwxyzSTOP.,!?'\"\n好é"]
    pieces += [f"▁{piece}" for piece in ("the", "st", "op", "a", "好", ".", "END")] + ["st", "op"]
    for piece in pieces:
        vocab.setdefault(piece, len(vocab))
    tokenizer = Tokenizer(
        models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True)
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoder or decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(content=" ", left=1),
        ]
    )
    return _finished(tokenizer, unk_token="<unk>", **options)


def metaspace(**options):
    """The same vocabulary under the other decoder for it, which joins no bytes."""
    return sentencepiece(decoders.Metaspace(), **options)


def two_spaces_lost(**options):
    """A decoder that takes two spaces from the beginning of the text."""
    replace, strip = decoders.Replace("▁", " "), decoders.Strip(content=" ", left=2)
    return sentencepiece(decoders.Sequence([replace, decoders.Fuse(), strip]), **options)


def wordpiece(**options):
    """WordPiece, whose text is cleaned up: spaces before punctuation go."""
    words = ["the", "do", "it", "n", "##n", "'", "t", "s", "ve", ".", ",", "?", "##'", "##t", "##s"]
    words += ["n't", "'s", "'m", "' ", "m", "re", "a", "##a", "b", "é", "##.", " ", "##v", "##e"]
    vocab = {word: number for number, word in enumerate(["[UNK]", *words])}
    tokenizer = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    tokenizer.decoder = decoders.WordPiece(cleanup=False)
    options = {"clean_up_tokenization_spaces": True, **options}
    return _finished(tokenizer, unk_token="[UNK]", **options)


ALL = {
    "byte_level": byte_level,
    "sentencepiece": sentencepiece,
    "metaspace": metaspace,
    "two_spaces_lost": two_spaces_lost,
    "wordpiece": wordpiece,
}


def _finished(tokenizer, add_bos=False, **options):
    # Special tokens are skipped in the text; a plain added one is not.
    specials = ["<s>", "</s>", "<|user|>", "<|assistant|>", "<|system|>", "<|end|>"]
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in specials])
    tokenizer.add_tokens([AddedToken("<tool>", special=False)])
    if add_bos:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", **options
    )
