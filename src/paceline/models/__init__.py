"""From a name to files on disk: known models, GGUF files, folders, hub names.

`resolve` returns a folder in Hugging Face layout for any of them; `fetch` downloads a known model;
`load_tokenizer` and `eos_token_ids` read the text side.
"""

from paceline.models.cache import Progress
from paceline.models.conversion import convert
from paceline.models.known import KNOWN, KnownModel, fetch
from paceline.models.sources import DTYPES, Files, check_folder, resolve
from paceline.models.tokens import eos_token_ids, load_tokenizer

__all__ = [
    "DTYPES",
    "KNOWN",
    "Files",
    "KnownModel",
    "Progress",
    "check_folder",
    "convert",
    "eos_token_ids",
    "fetch",
    "load_tokenizer",
    "resolve",
]
