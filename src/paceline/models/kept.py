"""The converted models in the cache, and how to delete them."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from paceline.cache_folder import cache_folder
from paceline.errors import ModelError
from paceline.models.cache import read_json
from paceline.models.conversion import CONVERTER, MANIFEST


@dataclass(frozen=True, slots=True)
class Conversion:
    """A GGUF file that was unpacked once and is reused.

    Args:
        folder: the folder of the conversion.
        source: the name of the GGUF file.
        sha256: the hash of that file, or of all files of a split model.
        dtype: the dtype it was unpacked to.
        size_bytes: its size on disk.
        is_current: whether this version of Paceline uses it.
    """

    folder: Path
    source: str
    sha256: str
    dtype: str
    size_bytes: int
    is_current: bool


def conversions() -> list[Conversion]:
    """Every conversion in the cache, ordered by folder."""
    parent = cache_folder() / "converted"
    folders = sorted(path for path in parent.glob("*") if path.is_dir())
    return [_read(folder) for folder in folders if not folder.name.startswith(".")]


def remove(kept: Iterable[Conversion]) -> int:
    """Delete conversions; they are made again when needed. Returns the bytes freed.

    Raises:
        ModelError: one cannot be deleted.
    """
    freed = 0
    for one in kept:
        try:
            shutil.rmtree(one.folder)
        except OSError as error:
            raise ModelError(f"cannot delete {one.folder}: {error.strerror or error}") from error
        freed += one.size_bytes
    return freed


def _read(folder: Path) -> Conversion:
    try:
        manifest = read_json(folder / MANIFEST) or {}
    except ModelError:
        manifest = {}  # incomplete: nothing uses it
    return Conversion(
        folder,
        str(manifest.get("source", "unknown")),
        str(manifest.get("sha256", "")),
        str(manifest.get("dtype", "unknown")),
        sum(file.stat().st_size for file in folder.rglob("*") if file.is_file()),
        manifest.get("converter") == CONVERTER,
    )
