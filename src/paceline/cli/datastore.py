"""`paceline datastore`: build and describe the corpora that `retrieval` drafts from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from paceline.cli import options, terminal
from paceline.errors import InvalidInput

if TYPE_CHECKING:
    from paceline.drafting.stores.corpus import Corpus
    from paceline.models.cache import Progress

DEFAULT_TOKENIZER = "smollm2-135m"

app = typer.Typer(no_args_is_help=True)


@app.callback()
def datastore() -> None:
    """Build a corpus for the drafter `retrieval`, or describe one."""


@app.command("build")
def build(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILE...",
            help="Text files, each a document, or JSON lines (.jsonl), each line a document.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="STORE", help="The file to write.")
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer",
            "--model",
            "-m",
            metavar="NAME|FOLDER|GGUF",
            help="The model that the corpus is for, or one with the same tokenizer.",
            autocompletion=options.model_names,
        ),
    ] = DEFAULT_TOKENIZER,
    field: Annotated[
        str,
        typer.Option(
            "--field",
            metavar="NAME",
            help="The field of a JSON object with its text, or with a list of texts or messages.",
        ),
    ] = "text",
    overwrite: Annotated[
        bool, typer.Option("--overwrite", metavar="", help="Replace STORE if it exists.")
    ] = False,
    as_json: options.AsJson = False,
) -> None:
    """Build a corpus from texts: `paceline generate --drafter retrieval` then drafts from it.

    It takes about 8 bytes per token on disk, and 50 in memory while it is built.
    """
    if output.exists() and not overwrite:
        raise InvalidInput(f"{output} already exists; give another path, or --overwrite")
    if output.is_dir() or not output.absolute().parent.is_dir():
        raise InvalidInput(f"cannot write {output}: give a file in an existing folder")
    for file in files:
        if not file.is_file():
            raise InvalidInput(f"cannot read {file}: it does not exist")
    with terminal.progress(f"loading the tokenizer of {tokenizer}") as progress:
        corpus = corpus_of(files, tokenizer, field, progress)
        corpus.write(output)
    _show(output, corpus, as_json=as_json)


@app.command("info")
def info(
    store: Annotated[Path, typer.Argument(metavar="STORE", help="A file made by `build`.")],
    as_json: options.AsJson = False,
) -> None:
    """Describe a corpus and the tokenizer that it is for."""
    from paceline.drafting.stores.corpus import Corpus

    _show(store, Corpus.open(store), as_json=as_json)


def corpus_of(files: list[Path], tokenizer: str, field: str, progress: Progress) -> Corpus:
    """Encode the documents of the files, and sort their suffixes."""
    from array import array

    import numpy as np

    from paceline.drafting.stores.corpus import DEPTH, MARK, Corpus, suffix_order
    from paceline.text import encode_plain, tokenizer_fingerprint
    from paceline.text.documents import read_documents

    with terminal.transformers_is_quiet():
        encoder = _tokenizer(tokenizer, progress)
        ids, num_documents = array("I"), 0
        for file in files:
            size, started = file.stat().st_size, False
            for piece in read_documents(file, field):
                ids.extend(encode_plain(encoder, piece.text))
                started = started or bool(piece.text)
                if piece.is_last and started:
                    ids.append(MARK)
                    num_documents, started = num_documents + 1, False
                progress(piece.num_bytes, size, f"reading {file.name}")
    if len(ids) == num_documents:
        raise InvalidInput("these files have no text; a corpus needs some")
    highest = max(token for token in set(ids) if token != MARK)
    ids.extend([MARK] * DEPTH)
    if len(ids) >= 2**31:
        raise InvalidInput(f"the files have {len(ids)} tokens; a corpus takes less than 2 ** 31")
    tokens = np.frombuffer(ids, np.uint32)
    size = tokens.nbytes

    def sort_progress(done: int, total: int) -> None:
        progress(size * done // total, size, "sorting the suffixes")

    about = {
        "tokenizer": tokenizer,
        "fingerprint": tokenizer_fingerprint(encoder),
        "num_documents": str(num_documents),
        "highest": str(highest),
    }
    return Corpus(tokens, suffix_order(tokens, sort_progress), about, "the new datastore")


def _tokenizer(name: str, progress: Progress) -> Any:
    from paceline.models import load_tokenizer, resolve
    from paceline.models.finding import native_dtype

    folder = Path(name).expanduser()
    if (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file():
        return load_tokenizer(folder)
    return load_tokenizer(resolve(name, dtype=native_dtype(), progress=progress).folder)


def _show(path: Path, corpus: Corpus, *, as_json: bool) -> None:
    facts = {
        "path": str(path),
        "num_tokens": len(corpus),
        "num_documents": int(corpus.about["num_documents"]),
        "size_bytes": corpus.num_bytes,
        "tokenizer": corpus.about.get("tokenizer"),
        "fingerprint": corpus.about.get("fingerprint"),
    }
    if as_json:
        terminal.print_json(facts)
        return
    count = facts["num_documents"]
    terminal.out().print(
        f"{path}: {facts['num_tokens']:,} tokens in {count:,} document{'s' * (count != 1)}, "
        f"{terminal.quantity(corpus.num_bytes)}, for the tokenizer of {facts['tokenizer']} "
        f"({str(facts['fingerprint'])[:8]})",
        soft_wrap=True,
    )
