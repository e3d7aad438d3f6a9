"""The files of a head: its configuration and its tensors, read one by one, with clear errors."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from paceline.errors import InvalidInput, ModelError
from paceline.models.cache import read_json
from paceline.models.reasons import one_line
from paceline.models.sources import from_hub

_SAFE = (".safetensors",)
_PICKLED = (".pt", ".bin", ".pth")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

Shape = tuple[int | None, ...]
"""The expected shape of a tensor; None where any length will do."""


class HeadFiles:
    """A head on disk, not interpreted yet. Make it with `open_files`.

    Each tensor is read when it is taken, and readers take every one: `refuse_leftovers` then finds
    what they did not understand.

    Args:
        path: the folder or file, for messages.
        config: what `config.json` holds; empty if there is none.
        tensors: the tensors by their names, read on access.
    """

    def __init__(
        self, path: Path, config: Mapping[str, Any], tensors: Mapping[str, Tensor]
    ) -> None:
        self.path, self.config, self._tensors = path, config, tensors
        self._taken: set[str] = set()

    def again(self) -> HeadFiles:
        """The same files, of which nothing was taken yet."""
        return HeadFiles(self.path, self.config, self._tensors)

    @property
    def name(self) -> str:
        """For messages and reports."""
        return self.path.resolve().name

    @property
    def keys(self) -> frozenset[str]:
        """The names of all tensors."""
        return frozenset(self._tensors)

    def has(self, key: str) -> bool:
        """Whether there is such a tensor."""
        return key in self._tensors

    def take(self, key: str, shape: Shape | None = None, *, why: str = "its format") -> Tensor:
        """A tensor, as it is in the file.

        Args:
            key: its name.
            shape: the expected shape.
            why: what says that it has to be there, or has to have this shape.

        Raises:
            ModelError: it is missing, or has another shape.
        """
        if key not in self._tensors:
            raise ModelError(
                f"{self.path} lacks the tensor {key!r}, which {why} asks for; the file is "
                "incomplete, or its config.json belongs to another head"
            )
        found = self._tensors[key]
        if shape is not None and not _fits(tuple(found.shape), shape):
            wanted = " x ".join("any" if size is None else f"{size}" for size in shape)
            raise ModelError(
                f"{self.path}: the tensor {key!r} is {' x '.join(map(str, found.shape))} and "
                f"should be {wanted} by {why}; the files do not belong together"
            )
        self._taken.add(key)
        return found

    def leave(self, *keys: str) -> None:
        """Mark tensors as understood and not needed, such as rows that are the target's own."""
        self._taken.update(keys)

    def number(self, setting: str, default: int | None = None) -> int:
        """A whole number of the configuration.

        Raises:
            ModelError: it is missing without a default, or not a whole number above 0.
        """
        value = self.config.get(setting, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            came = "missing" if setting not in self.config else f"{value!r}"
            raise ModelError(
                f"{self.path}: {setting} of its config.json must be a whole number of at least 1; "
                f"it is {came}"
            )
        return value

    def refuse_leftovers(self, kind: str) -> None:
        """Refuse tensors that nobody took: a head without them would be another one.

        Raises:
            ModelError: there are some.
        """
        if left := sorted(self.keys - self._taken):
            raise ModelError(
                f"{self.path}: {len(left)} of its tensors have no place in a {kind} head "
                f"({', '.join(left[:3])}); it is another kind of head, or a newer form of this one"
            )


def _fits(found: tuple[int, ...], wanted: Shape) -> bool:
    return len(found) == len(wanted) and all(
        size in (None, actual) for actual, size in zip(found, wanted, strict=True)
    )


def open_files(source: str | Path, *, allow_pickle: bool = False) -> HeadFiles:
    """The files of a head.

    Args:
        source: a folder with one file of weights and perhaps `config.json`, that file itself, or
            the name of a repository on the hub (`org/name`).
        allow_pickle: accept pickled weights (.pt, .bin). They are read without running what else
            the pickle holds, but the format was not made for files that nobody vouches for.

    Raises:
        InvalidInput: there is no such file, it is not a head, or the switch is needed.
        ModelError: the files are damaged, or the hub cannot be reached.
    """
    path = _found(source, allow_pickle)
    folder, files = (path.parent, [path]) if path.is_file() else (path, _weights(path))
    config = read_json(folder / "config.json") or {}
    if not files:
        raise InvalidInput(
            f"{path} holds no weights of a head: expected .safetensors, or .pt and .bin with "
            "allow_pickle (--allow-pickle)"
        )
    tensors: dict[str, Any] = {}
    for file in files:
        tensors |= dict.fromkeys(*_opened(file, allow_pickle))
    return HeadFiles(path, config, _Tensors(tensors))


def _found(source: str | Path, allow_pickle: bool) -> Path:
    text = str(source)
    try:
        path = Path(source).expanduser()
        exists = bool(text) and path.exists()
    except (OSError, ValueError, RuntimeError) as error:
        raise InvalidInput(f"not a draft head: {source!r:.80} ({error})") from error
    if exists:
        return path
    if path.is_absolute() or text.startswith((".", "~")) or not _HUB_NAME.fullmatch(text):
        raise InvalidInput(
            f"no such draft head: {text!r:.80}; expected a folder or file of a head, or a hub name "
            "(org/name)"
        )
    try:
        return from_hub(text, allow_pickle=allow_pickle)
    except ModelError as error:
        raise ModelError(
            f"{error}, and there is no such folder; give the folder or file of a draft head"
        ) from error


def _weights(folder: Path) -> list[Path]:
    """The files with weights: safetensors, or else what is pickled."""
    for kinds in (_SAFE, _PICKLED):
        if found := sorted(file for file in folder.iterdir() if file.suffix in kinds):
            return found
    return []


def _opened(file: Path, allow_pickle: bool) -> tuple[list[str], Any]:
    """The names of a file's tensors, and what gives them."""
    if file.suffix in _SAFE:
        from safetensors import SafetensorError, safe_open

        try:
            handle = safe_open(file, framework="pt")
            return [*handle.keys()], handle.get_tensor  # type: ignore[no-untyped-call]
        except (SafetensorError, OSError) as error:
            raise ModelError(
                f"{file} is damaged or truncated ({one_line(error)}); get it again"
            ) from error
    if file.suffix not in _PICKLED:
        raise InvalidInput(f"{file} is not a file of weights; expected .safetensors, .pt or .bin")
    if not allow_pickle:
        raise InvalidInput(
            f"{file} is a pickle, and pickles can run code when they are read; pass "
            "allow_pickle=True (--allow-pickle) if you trust it, or convert it to safetensors"
        )
    return _unpickled(file)


def _unpickled(file: Path) -> tuple[list[str], Any]:
    import pickle
    import zipfile

    try:
        found = torch.load(file, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, zipfile.BadZipFile, EOFError, RuntimeError, OSError) as error:
        raise ModelError(
            f"{file} cannot be read as a dictionary of tensors ({one_line(error):.200}); it is "
            "damaged, truncated, or holds more than tensors"
        ) from error
    if not isinstance(found, Mapping) or not all(
        isinstance(key, str) and isinstance(value, Tensor) for key, value in found.items()
    ):
        raise ModelError(f"{file} holds something else than named tensors; it is not a head")
    return list(found), found.__getitem__


class _Tensors(Mapping[str, Tensor]):
    """Tensors that are read on access."""

    def __init__(self, readers: Mapping[str, Any]) -> None:
        self._readers = readers

    def __getitem__(self, key: str) -> Tensor:
        found: Tensor = self._readers[key](key)
        return found

    def __contains__(self, key: object) -> bool:
        return key in self._readers

    def __iter__(self) -> Iterator[str]:
        return iter(self._readers)

    def __len__(self) -> int:
        return len(self._readers)


def write_files(
    folder: Path, weights: str, tensors: Mapping[str, Tensor], config: Mapping[str, Any]
) -> list[Path]:
    """Write a head: its weights and `config.json`.

    Args:
        folder: made if it is not there.
        weights: the name of the file of weights.
        tensors: what it holds. Copies are written, since one tensor may stand under several names.
        config: what `config.json` holds.

    Returns:
        The two files.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    from safetensors.torch import save_file

    files = [folder / weights, folder / "config.json"]
    kept = {name: tensor.detach().contiguous().clone() for name, tensor in tensors.items()}
    try:
        folder.mkdir(parents=True, exist_ok=True)
        save_file(kept, files[0], metadata={"format": "pt"})
        files[1].write_text(json.dumps(config, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    except OSError as error:
        raise InvalidInput(f"cannot write {folder} ({error}); give another folder") from error
    return files
