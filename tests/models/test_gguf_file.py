"""The oracle is the reader of the gguf package, for files that are whole."""

import random
import struct

import gguf
import numpy as np
import pytest

from paceline.errors import InvalidInput, ModelError, PacelineError, UnsupportedModel
from paceline.models.gguf_file import read_head

SCALARS = {
    "uint8": 200,
    "int8": -3,
    "uint16": 60000,
    "int16": -300,
    "uint32": 4_000_000_000,
    "int32": -70000,
    "uint64": 1 << 60,
    "int64": -(1 << 60),
    "float32": 0.25,
    "float64": 0.1,
    "bool": True,
}


@pytest.fixture
def path(tmp_path):
    return write(tmp_path / "small.gguf")


def write(path, change=lambda writer: None):
    writer = gguf.GGUFWriter(path, "llama")
    for kind, value in SCALARS.items():
        getattr(writer, f"add_{kind}")(f"a.{kind}", value)
    writer.add_string("a.text", "né 🙂")
    writer.add_array("a.texts", ["x", "", "你好"])
    writer.add_array("a.numbers", [1, 2, 3])
    change(writer)
    writer.add_tensor("one", np.arange(6, dtype=np.float32).reshape(2, 3))
    quantised = gguf.quants.quantize(np.ones((4, 64), np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("two", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("three", np.ones(5, dtype=np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_metadata_and_tensors(path):
    head, oracle = read_head(path), gguf.GGUFReader(path)
    assert head.architecture == "llama"
    for kind, value in SCALARS.items():
        assert head.metadata[f"a.{kind}"] == pytest.approx(value)
    expected = {name: field.contents() for name, field in oracle.fields.items()}
    assert dict(head.metadata) == {k: v for k, v in expected.items() if not k.startswith("GGUF.")}
    assert [(t.name, list(t.shape[::-1]), t.type_id, t.offset, t.size) for t in head.tensors] == [
        (t.name, t.shape.tolist(), t.tensor_type, t.data_offset, t.n_bytes) for t in oracle.tensors
    ]


def test_a_file_cut_short_anywhere_is_found(path):
    whole = path.read_bytes()
    end = max(tensor.offset + tensor.size for tensor in read_head(path).tensors)
    for length in range(end):
        path.write_bytes(whole[:length])
        with pytest.raises((InvalidInput, ModelError), match=str(path)):
            read_head(path)


def test_a_file_with_a_byte_changed_is_read_or_refused(path):
    # Whatever the head says then, it is answered at once, and with an error of ours.
    whole, rng = bytearray(path.read_bytes()), random.Random(0)
    for position in range(0, len(whole), 2):
        changed = bytearray(whole)
        changed[position] = rng.choice([0, 1, 255, changed[position] ^ (1 << rng.randrange(8))])
        path.write_bytes(changed)
        try:
            read_head(path)
        except PacelineError as error:
            assert str(path) in str(error)  # noqa: PT017


def patched(path, old, new):
    whole = path.read_bytes()
    assert old in whole
    path.write_bytes(whole.replace(old, new, 1))


@pytest.mark.parametrize(
    ("old", "new", "error", "message"),
    [
        (b"GGUF", b"GGML", InvalidInput, "not a GGUF file: it does not begin with 'GGUF'"),
        (struct.pack("<I", 3), struct.pack("<I", 1), ModelError, "GGUF version 1; .* 2 and 3"),
        (struct.pack("<I", 3), struct.pack(">I", 3), ModelError, "little-endian"),
        (b"general.architecture", b"general.architectura", ModelError, "names no architecture"),
        ("你".encode(), b"\xff\xff\xff", ModelError, "is not UTF-8"),
        (b"one", b"two", ModelError, "two tensors have the same name"),
    ],
)
def test_each_fault_has_its_message(path, old, new, error, message):
    patched(path, old, new)
    with pytest.raises(error, match=message):
        read_head(path)


def test_a_tensor_past_the_end(path):
    with path.open("r+b") as file:
        file.truncate(read_head(path).tensors[1].offset + 7)
    with pytest.raises(ModelError, match=r"tensor 'two' ends at byte \d+ and the file has"):
        read_head(path)


def test_a_tensor_that_fills_no_blocks(path):
    patched(path, struct.pack("<QQ", 64, 4), struct.pack("<QQ", 63, 4))
    with pytest.raises(ModelError, match=r"'two' of shape \(4, 63\) does not fill blocks of 32"):
        read_head(path)


def test_a_tensor_stored_in_an_unknown_way(path):
    patched(path, struct.pack("<QQI", 64, 4, 8), struct.pack("<QQI", 64, 4, 999))
    with pytest.raises(ModelError, match="'two' has the unknown storage type 999"):
        read_head(path)


def test_one_part_of_several(tmp_path):
    path = write(tmp_path / "part.gguf", lambda writer: writer.add_uint16("split.count", 3))
    with pytest.raises(UnsupportedModel, match=r"split over 3 files; join them"):
        read_head(path)


def test_what_is_no_model(tmp_path):
    path = write(tmp_path / "part.gguf", lambda writer: writer.add_type("adapter"))
    with pytest.raises(UnsupportedModel, match="'adapter'"):
        read_head(path)


def test_an_alignment_that_cannot_be(tmp_path):
    path = write(tmp_path / "part.gguf", lambda writer: writer.add_uint32("general.alignment", 8))
    name = b"general.alignment"
    patched(path, name + struct.pack("<II", 4, 8), name + struct.pack("<II", 4, 0))
    with pytest.raises(ModelError, match="its alignment is 0"):
        read_head(path)


@pytest.mark.parametrize("content", [b"", b"GG", b"GGUF"])
def test_almost_nothing(tmp_path, content):
    (tmp_path / "x.gguf").write_bytes(content)
    with pytest.raises((InvalidInput, ModelError)):
        read_head(tmp_path / "x.gguf")


def test_a_folder(tmp_path):
    with pytest.raises(ModelError, match=r"cannot read .*directory"):
        read_head(tmp_path)
