"""Where models go. The machine's own devices are replaced where a test needs others."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import paceline
from paceline.errors import InvalidInput
from paceline.models import devices
from paceline.models.devices import Placement, check_place, placement
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.hf.decoder import HFDecoder
from tests import tiny_folders

PROMPT = [*range(5, 25)]


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with two CUDA devices, as far as torch is asked."""
    module = SimpleNamespace(
        is_available=lambda: True, device_count=lambda: 2, current_device=lambda: 1
    )
    monkeypatch.setattr(torch, "get_device_module", lambda kind: {"cuda": module}[kind])


@pytest.fixture
def accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where accelerate is installed, as far as Python is asked."""
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: object())  # type: ignore[attr-defined]


@pytest.mark.parametrize("given", [None, "cpu", "cpu:0", torch.device("cpu")], ids=str)
def test_the_cpu_is_no_other_place(given: Any) -> None:
    assert placement(given) == placement(None, given) == Placement()
    assert placement(given).reason is None


@pytest.mark.usefixtures("two_gpus")
def test_a_device_that_is_there() -> None:
    for given, device in (("cuda", "cuda"), ("cuda:1", "cuda:1"), (1, "cuda:1")):
        assert placement(given) == placement(None, given) == Placement(torch.device(device))
    assert placement("cuda").reason == "it runs on the CPU only, and this model goes to cuda"


@pytest.mark.usefixtures("two_gpus", "accelerate")
@pytest.mark.parametrize("given", ["auto", "balanced", {"": 0}, {"model": "cuda", "lm_head": 1}])
def test_a_device_map_goes_to_transformers_as_it_is(given: Any) -> None:
    assert placement(None, given) == Placement(device_map=given)


@pytest.mark.parametrize(
    ("device", "device_map", "message"),
    [
        ("gpu", None, "device must be a device of torch, such as .*; it is 'gpu'"),
        (True, None, "device must be a device of torch"),
        ("meta", None, "weights on the meta device hold no numbers"),
        ("cuda:2", None, "sees 2 of this kind on this machine"),
        ("xpu", None, "sees none of this kind on this machine"),
        (None, "fast", "device_map must be a device of torch"),
        (None, {}, "device_map must be a device, one of auto"),
        (None, 1.5, "device_map must be a device, one of auto"),
        (None, {"": "cuda:2"}, "each device of device_map='cuda:2'"),
        ("cuda", "auto", "device and device_map both say"),
    ],
)
@pytest.mark.usefixtures("accelerate")
def test_what_is_no_place(
    monkeypatch: pytest.MonkeyPatch, device: Any, device_map: Any, message: str
) -> None:
    counts = {"cuda": 2}
    monkeypatch.setattr(devices, "_count", lambda kind: counts.get(kind, 0))
    with pytest.raises(InvalidInput, match=message):
        placement(device, device_map)


def test_without_accelerate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(devices.importlib.util, "find_spec", lambda name: None)  # type: ignore[attr-defined]
    with pytest.raises(InvalidInput, match=r"device_map='auto' needs the package accelerate"):
        placement(None, "auto")


@pytest.mark.usefixtures("two_gpus", "accelerate")
def test_a_loaded_model_stays_where_it_is() -> None:
    model = torch.nn.Linear(1, 1)
    check_place(model)
    check_place(model, "cpu")
    for place in ({"device": "cuda"}, {"device_map": "auto"}):
        with pytest.raises(InvalidInput, match=r"move it first, as in `model.to\(device\)`"):
            check_place(model, **place)
    elsewhere: Any = SimpleNamespace(
        parameters=lambda: iter([SimpleNamespace(device=torch.device("cuda:1"))])
    )
    check_place(elsewhere, "cuda")  # the current one
    check_place(elsewhere, 1)
    for wrong in ("cpu", "cuda:0"):
        with pytest.raises(InvalidInput, match="move it first"):
            check_place(elsewhere, wrong)


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_another_device_is_for_the_model_s_own_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: Any
) -> None:
    """The device is the CPU here, by a name that Paceline does not take for it."""
    tiny_folders.save(tmp_path, family)
    elsewhere = Placement(torch.device("cpu"))
    monkeypatch.setattr("paceline.models.finding.placement", lambda *given: elsewhere)
    model = paceline.load(tmp_path, device="elsewhere")
    assert isinstance(model.decoder, HFDecoder)
    own = tiny_folders.model(family)
    limits: Any = {"max_new_tokens": 30, "eos_token_id": None, "pad_token_id": 0}
    expected = own.generate(torch.tensor([PROMPT]), do_sample=False, **limits)[0, len(PROMPT) :]
    found = model.generate(PROMPT, drafter="ngram", max_tokens=30, ignore_eos=True)
    assert list(found.token_ids) == expected.tolist()
    for options in ({"storage": "int8"}, {"head_tokens": 20}):
        with pytest.raises(InvalidInput, match=r"runs on the CPU only, and this model goes to cpu"):
            paceline.load(tmp_path, device="elsewhere", **options)
    with pytest.raises(InvalidInput, match="packed weights are for the CPU"):
        paceline.load(tmp_path, device="elsewhere", storage="packed")


@pytest.mark.skipif(importlib.util.find_spec("accelerate") is None, reason="needs accelerate")
def test_a_device_map(tmp_path: Path) -> None:
    tiny_folders.save(tmp_path)
    model = paceline.load(tmp_path, device_map="auto")
    assert isinstance(model.decoder, HFDecoder)
    lean = paceline.load(tmp_path)
    assert isinstance(lean.decoder, DenseDecoder)
    answers = [m.generate(PROMPT, max_tokens=20, ignore_eos=True).token_ids for m in (model, lean)]
    assert answers[0] == answers[1]
