"""What the shadow of a model shares with it, and what is its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import UnsupportedModel
from paceline.targets.hf.shadow import shadow_of


class Packed:
    """A weight in an object that is no module."""

    def __init__(self) -> None:
        self.weight = torch.ones(3, 3)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.tied = nn.Linear(3, 3)
        self.tied.weight = self.linear.weight
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)
        self.register_buffer("scale", torch.ones(3))
        self.register_buffer("scratch", torch.ones(3), persistent=False)
        self.packed, self.loose, self.listed = Packed(), torch.ones(3), [torch.ones(3)]
        self.absent: Any = nn.Linear(3, 3, bias=False).bias
        self.made = (self.loose * self.linear.weight).sum()  # has a history, cannot be copied
        self.settings = {"alpha": 1}

    def forward(self, x: Tensor) -> Tensor:
        self.scratch.mul_(2)
        self.settings["alpha"] += 1
        return self.linear(x)


def test_tensors_are_shared_and_scratch_buffers_modules_and_settings_are_not() -> None:
    model = Model()
    shadow: Any = shadow_of(model)
    assert [id(p) for p in shadow.parameters()] == [id(p) for p in model.parameters()]
    assert shadow.tied.weight is shadow.linear.weight is model.linear.weight
    assert shadow.scale is model.scale
    assert shadow.loose is model.loose
    assert shadow.made is model.made
    assert shadow.listed[0] is model.listed[0]
    assert shadow.packed is not model.packed
    assert shadow.packed.weight is model.packed.weight
    assert not {id(module) for module in shadow.modules()} & {id(m) for m in model.modules()}
    shadow(torch.ones(1, 3))
    assert torch.equal(model.scratch, torch.ones(3))
    assert model.settings == {"alpha": 1}
    assert torch.equal(shadow.scratch, torch.full((3,), 2.0))


def test_the_shadow_is_in_evaluation_mode_and_the_model_stays_as_it_is() -> None:
    model = Model()
    model.tied.eval()
    before = [module.training for module in model.modules()]
    assert not any(module.training for module in shadow_of(model).modules())
    assert [module.training for module in model.modules()] == before


def test_a_compiled_model_is_unwrapped() -> None:
    model = Model()
    assert type(shadow_of(torch.compile(model, backend="eager"))) is Model


def test_what_cannot_be_copied_is_refused() -> None:
    model: Any = Model()
    model.handle = open(__file__)  # noqa: SIM115
    with model.handle, pytest.raises(UnsupportedModel, match="modules of Model cannot be copied"):
        shadow_of(model)


def test_weights_on_the_meta_device_are_refused() -> None:
    model = Model()
    model.tied.bias = nn.Parameter(torch.ones(3, device="meta"))
    with pytest.raises(UnsupportedModel, match="on the meta device"):
        shadow_of(model)
