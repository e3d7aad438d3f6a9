"""Shards on disk: what is read is what was written, and nothing half is ever there."""

from __future__ import annotations

import errno
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.hidden import HiddenStates
from paceline.errors import InvalidInput, NoSpace
from paceline.train import store as module
from paceline.train.store import Captured, Store, write_whole

Usage = namedtuple("Usage", "total used free")


def captured(length: int, prompt: int, seed: int = 0, layers: tuple[int, ...] = ()) -> Captured:
    random = torch.Generator().manual_seed(seed)

    def states() -> torch.Tensor:
        return torch.randn(length - 1, 4, generator=random).bfloat16()

    return Captured(
        torch.randint(9, (length,), generator=random, dtype=torch.int32),
        prompt,
        HiddenStates({layer: states() for layer in layers}, states()),
    )


def test_sequences_come_back_as_they_were(tmp_path: Path) -> None:
    store = Store(tmp_path)
    first = [captured(7, 3, 0, (1, 4)), captured(5, 2, 1, (1, 4))]
    second = [captured(9, 1, 2, (1, 4))]
    store.append(first, {"candidate": 2})
    store.append(second, {"candidate": 3})
    again = Store(tmp_path)
    assert [shard.about["candidate"] for shard in again] == [2, 3]
    found = [shard[place] for shard in again for place in range(len(shard))]
    for one, other in zip(found, first + second, strict=True):
        assert torch.equal(one.tokens, other.tokens)
        assert one.num_prompt_tokens == other.num_prompt_tokens
        assert one.hidden.final is not None
        assert other.hidden.final is not None
        assert torch.equal(one.hidden.final, other.hidden.final)
        for layer in (1, 4):
            assert torch.equal(one.hidden.layers[layer], other.hidden.layers[layer])
    assert [shard.lengths for shard in again] == [[(3, 4), (2, 3)], [(1, 8)]]
    assert again.num_bytes == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_too_little_room_is_found_before_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(tmp_path)
    store.append([captured(7, 3)], {})
    monkeypatch.setattr(shutil, "disk_usage", lambda folder: Usage(9, 8, 1_000_000))
    with pytest.raises(NoSpace, match=r"has 1 MB left and 67 MB are needed; nothing is lost"):
        store.append([captured(7, 3)], {})
    assert len(store) == 1


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_leaves_what_was_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store = Store(tmp_path)
    store.append([captured(7, 3)], {})
    before = {path: path.read_bytes() for path in tmp_path.iterdir()}

    def full(tensors: Any, path: Path, metadata: Any) -> None:
        path.write_bytes(b"half of a shard")
        raise OSError(number, "no room")

    monkeypatch.setattr(module, "save_file", full)
    with pytest.raises(NoSpace, match="is full; nothing is lost: make room and go on"):
        store.append([captured(9, 3)], {})
    assert {path: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_another_failure_is_told_as_what_it_is(tmp_path: Path) -> None:
    def refused(path: Path) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    with pytest.raises(InvalidInput, match=r"cannot write .* Permission denied"):
        write_whole(tmp_path / "file", refused)


@pytest.mark.parametrize("cut", [4, 60, -1])
def test_a_damaged_shard_is_refused(tmp_path: Path, cut: int) -> None:
    Store(tmp_path).append([captured(7, 3)], {})
    (path,) = tmp_path.iterdir()
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(InvalidInput, match=r"shard-00000.safetensors is not a shard"):
        list(Store(tmp_path))
