"""What was captured of the target: shards of sequences on disk, read by memory map.

A shard is a safetensors file of whole sequences, one after another:

- `tokens` int32 `[N]`: prompts and answers;
- `starts` int64 `[S + 1]`: where each sequence begins in `tokens`, and the end of the last;
- `num_prompt_tokens` int64 `[S]`;
- `final` and `layer.I`, `[N - S, hidden]`: the states of every token but the last of each sequence,
  which no pass has seen.

It is written under another name and moved into its place, so there is never half a shard.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.errors import InvalidInput, NoSpace

SPARE_BYTES = 64 << 20
"""What is left free on the disk beside what is written."""

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True, slots=True, eq=False)
class Captured:
    """One sequence.

    Args:
        tokens: prompt and answer, int32 `[n]`.
        num_prompt_tokens: the length of the prompt.
        hidden: the states of the first n - 1 tokens, on the CPU.
    """

    tokens: Tensor
    num_prompt_tokens: int
    hidden: HiddenStates

    @property
    def num_answer_tokens(self) -> int:
        """The length of the answer."""
        return len(self.tokens) - self.num_prompt_tokens


class Shard:
    """A file of sequences. Its tensors lie in a memory map: what is not read takes no memory.

    Args:
        path: the file.

    Raises:
        InvalidInput: it is damaged, or is no shard.
    """

    def __init__(self, path: Path) -> None:
        try:
            with safe_open(path, framework="pt") as file:
                about = file.metadata() or {}
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            self.about: dict[str, Any] = json.loads(about["about"])
            self._tokens, self._final = tensors["tokens"], tensors.get("final")
            self._starts = tensors["starts"].tolist()
            self._prompts = tensors["num_prompt_tokens"].tolist()
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InvalidInput(
                f"{path} is not a shard of captured states, or is damaged ({error}); remove it and "
                "resume: it is captured again"
            ) from error
        numbers = sorted(
            int(name.removeprefix("layer.")) for name in tensors if name.startswith("layer.")
        )
        self._layers = {number: tensors[f"layer.{number}"] for number in numbers}

    def __len__(self) -> int:
        return len(self._prompts)

    def __getitem__(self, place: int) -> Captured:
        start, end = self._starts[place], self._starts[place + 1]
        rows = slice(start - place, end - place - 1)
        hidden = HiddenStates(
            {layer: states[rows] for layer, states in self._layers.items()},
            None if self._final is None else self._final[rows],
        )
        return Captured(self._tokens[start:end], self._prompts[place], hidden)

    @property
    def hidden(self) -> Hidden:
        """The states that it holds."""
        return Hidden(tuple(self._layers), final=self._final is not None)

    @cached_property
    def lengths(self) -> list[tuple[int, int]]:
        """The tokens of prompt and answer of each sequence."""
        sizes = zip(self._starts, self._starts[1:], self._prompts, strict=False)
        return [(prompt, end - start - prompt) for start, end, prompt in sizes]


class Store:
    """The shards in a folder.

    Args:
        folder: made where it is not there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return next(number for number in range(10**6) if not self._path(number).exists())

    def __iter__(self) -> Iterator[Shard]:
        return (Shard(self._path(number)) for number in range(len(self)))

    @property
    def num_bytes(self) -> int:
        """What the shards take on the disk."""
        return sum(self._path(number).stat().st_size for number in range(len(self)))

    def append(self, sequences: Sequence[Captured], about: Mapping[str, Any]) -> None:
        """Write the next shard.

        Args:
            sequences: at least one, all with the same states.
            about: plain values that are kept with it.

        Raises:
            NoSpace: the disk is full; what was written before is as it was.
        """
        first = sequences[0].hidden
        lengths = torch.tensor([0, *(len(one.tokens) for one in sequences)])
        tensors = {
            "tokens": torch.cat([one.tokens for one in sequences]),
            "starts": lengths.cumsum(0),
            "num_prompt_tokens": torch.tensor([one.num_prompt_tokens for one in sequences]),
        }
        for layer in first.layers:
            tensors[f"layer.{layer}"] = torch.cat([one.hidden.layers[layer] for one in sequences])
        if first.final is not None:
            finals = [one.hidden.final for one in sequences if one.hidden.final is not None]
            tensors["final"] = torch.cat(finals)
        metadata = {"format": "pt", "about": json.dumps(dict(about))}
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        require_space(self.folder, size)
        write_whole(self._path(len(self)), lambda path: save_file(tensors, path, metadata=metadata))

    def _path(self, number: int) -> Path:
        return self.folder / f"shard-{number:05d}.safetensors"


def bytes_per_token(hidden: Hidden, hidden_size: int, element_size: int = 2) -> int:
    """What the states of one token, and the token, take on the disk.

    >>> bytes_per_token(Hidden(final=True), 576)
    1156
    """
    return (len(hidden.layers) + hidden.final) * hidden_size * element_size + 4


def require_space(folder: Path, num_bytes: int) -> None:
    """Raise unless the disk of `folder` has room for this much more.

    Raises:
        NoSpace: says what is needed and what there is.
    """
    free = shutil.disk_usage(folder).free
    if free < num_bytes + SPARE_BYTES:
        raise NoSpace(
            f"the disk of {folder} has {free / 1e6:,.0f} MB left and "
            f"{(num_bytes + SPARE_BYTES) / 1e6:,.0f} MB are needed; nothing is lost: make room "
            "and go on with --resume, or begin again with fewer tokens"
        )


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under another name, and move it into its place once it is on the disk.

    Raises:
        NoSpace: the disk is full; what stood at `path` is as it was.
        InvalidInput: it cannot be written.
    """
    partial = path.with_name(f"{path.name}.partial")
    with _told_if_full(partial):
        write(partial)
        with partial.open("rb") as file:
            os.fsync(file.fileno())
        os.replace(partial, path)


@contextmanager
def _told_if_full(partial: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, SafetensorError) as error:
        partial.unlink(missing_ok=True)
        if getattr(error, "errno", None) in _FULL or "No space left" in str(error):
            raise NoSpace(
                f"the disk of {partial.parent} is full; nothing is lost: make room and go on with "
                "--resume"
            ) from error
        raise InvalidInput(f"cannot write {partial.parent}: {error}") from error
