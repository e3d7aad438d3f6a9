"""The oracle is the safetensors library."""

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from paceline.models import tensor_file
from paceline.models.tensor_file import TensorFile


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("backwards", [False, True])
def test_what_is_written_is_read(tmp_path, dtype, backwards, monkeypatch):
    monkeypatch.setattr(tensor_file, "_PIECE", 7)
    shapes = {"a": (3, 5), "é": (11,), "c": (), "d": (2, 2, 2), "e": (1, 7)}
    tensors = {name: torch.randn(shape) for name, shape in shapes.items()}
    tensors["d"] = tensors["d"].transpose(0, 2)  # not contiguous
    path = tmp_path / "model.safetensors"
    with TensorFile(path, shapes, dtype) as file:
        assert file.size == 42 * dtype.itemsize
        for name in sorted(tensors, reverse=backwards):
            assert name in file.missing
            file.write(name, tensors[name])
        assert not file.missing
        assert file.written == file.size
    loaded = load_file(path)
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == dtype
        assert torch.equal(loaded[name], tensor.to(dtype))
    with safe_open(path, framework="pt") as stored:
        assert stored.metadata() == {"format": "pt"}  # transformers insists on it


def test_a_tensor_is_written_once(tmp_path):
    with TensorFile(tmp_path / "x", {"a": (1,)}, torch.float32) as file:
        file.write("a", torch.ones(1))
        with pytest.raises(KeyError):
            file.write("a", torch.ones(1))
