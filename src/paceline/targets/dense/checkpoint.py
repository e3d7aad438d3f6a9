"""The weights of a model folder, tensor by tensor."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from safetensors import safe_open
from torch import Tensor

from paceline.errors import ModelError


class Checkpoint(Mapping[str, Tensor]):
    """The weights of a folder, each mapped from its file when it is read.

    A file is mapped anew for each tensor, so that its pages are given back when the tensor is
    dropped; one mapping for all would keep every page that was ever read.
    """

    def __init__(self, folder: Path) -> None:
        index = folder / "model.safetensors.index.json"
        if index.exists():
            names: dict[str, str] = json.loads(index.read_text())["weight_map"]
            self._files = {name: folder / file for name, file in names.items()}
        else:
            file = folder / "model.safetensors"
            if not file.exists():
                raise ModelError(f"{folder} has no model.safetensors; give a folder that does")
            with safe_open(file, framework="pt") as opened:
                self._files = dict.fromkeys(opened.keys(), file)

    def __getitem__(self, name: str) -> Tensor:
        with safe_open(self._files[name], framework="pt") as opened:
            return opened.get_tensor(name)

    def __contains__(self, name: object) -> bool:
        return name in self._files

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)
