"""Text around the token core: prompts in, pieces of text out, and stop strings."""

from paceline.text.detokenize import IncrementalDetokenizer
from paceline.text.fingerprint import tokenizer_fingerprint
from paceline.text.prompt import ChatOptions, encode_plain, encode_prompt
from paceline.text.stops import TextStream

__all__ = [
    "ChatOptions",
    "IncrementalDetokenizer",
    "TextStream",
    "encode_plain",
    "encode_prompt",
    "tokenizer_fingerprint",
]
