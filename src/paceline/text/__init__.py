"""Text around the token core: prompts in, pieces of text out, stop strings in between."""

from paceline.text.detokenize import IncrementalDetokenizer
from paceline.text.fingerprint import tokenizer_fingerprint
from paceline.text.prompt import encode_plain, encode_prompt
from paceline.text.stops import StopStrings, TextStream

__all__ = [
    "IncrementalDetokenizer",
    "StopStrings",
    "TextStream",
    "encode_plain",
    "encode_prompt",
    "tokenizer_fingerprint",
]
