"""What every operation promises: a reference, torch's own checks, and no gradients in silence."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.functional import gelu, silu

from paceline.errors import UnsupportedModel
from paceline.kernels import attention, bfloat16, row_operations, vnni
from paceline.kernels.bfloat16 import Bfloat16Linear
from paceline.kernels.llvm import attention as attention_loops
from paceline.kernels.llvm import bfloat16 as bfloat16_loops
from paceline.kernels.llvm import row_operations as row_loops
from paceline.kernels.llvm import vnni as vnni_loops
from paceline.kernels.operation import Operation
from paceline.kernels.packing import PackedLinear, PlainLinear
from paceline.kernels.quantized import AtenProduct, Int4Linear, Int8Linear
from paceline.kernels.vnni import VnniProduct
from tests.kernels.test_packing import normal

BF16 = torch.bfloat16


class Case(NamedTuple):
    """An operation, arguments that its loop takes, and whether the loop is available."""

    operation: Operation
    arguments: tuple[Any, ...]
    is_available: Callable[[], bool]


def rows(*shape: int, seed: int = 0) -> Tensor:
    return normal(*shape, seed=seed, dtype=BF16)


def cases() -> dict[str, Case]:
    mask = torch.zeros(6, 64).index_fill_(1, torch.arange(40, 64), -torch.inf)
    levels = torch.arange(16 * 64).remainder(16).view(16, 64)
    scales = rows(16, 2, 2, seed=3)
    rotation = rows(3, 2, 64), rows(3, 1, 64, seed=1), rows(3, 1, 64, seed=2)
    attended = rows(4, 3, 64), rows(2, 64, 64, seed=1), rows(2, 64, 64, seed=2), mask, 40, 0.1
    product = rows(3, 64), bfloat16.pack(rows(32, 64)), rows(32, seed=1), rows(3, 32, seed=2)
    alone = *product[:2], None, None
    int4 = rows(3, 64), vnni.pack(levels, scales)
    own, others = row_loops.is_available, bfloat16_loops.is_available
    return {
        "rms_norm": Case(row_operations._rms_norm, (rows(3, 64), rows(64), 1e-6, 0.0), own),
        "rotate": Case(row_operations._rotate, rotation, own),
        "silu_gated": Case(row_operations._silu_gated, (rows(3, 64),), own),
        "attend_few": Case(attention._attend, attended, attention_loops.is_available),
        "bfloat16_linear": Case(bfloat16.multiply, product, others),
        "bfloat16_linear-alone": Case(bfloat16.multiply, alone, others),
        "int4_linear": Case(vnni.multiply, int4, vnni_loops.is_available),
    }


CASES = cases()


@pytest.fixture(params=CASES)
def case(request: pytest.FixtureRequest) -> Case:
    return CASES[request.param]


@pytest.fixture
def loop_runs(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is faster on this machine."""
    if not case.is_available():
        pytest.skip("the processor lacks the instructions, or llvmlite is missing")
    monkeypatch.setattr(row_operations, "is_chosen", lambda: True)
    monkeypatch.setattr(attention, "is_chosen", lambda width: True)


@pytest.fixture
def no_loop_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_operations, "is_chosen", lambda: False)
    monkeypatch.setattr(attention, "is_chosen", lambda width: False)
    monkeypatch.setattr(bfloat16_loops, "is_available", lambda: False)
    monkeypatch.setattr(vnni_loops, "is_available", lambda: False)


def floats(arguments: tuple[Any, ...]) -> list[int]:
    """Which arguments may require grad."""
    return [i for i, a in enumerate(arguments) if isinstance(a, Tensor) and a.is_floating_point()]


def requiring_grad(arguments: tuple[Any, ...], place: int) -> tuple[Any, ...]:
    return tuple(a.clone().requires_grad_() if i == place else a for i, a in enumerate(arguments))


@pytest.mark.usefixtures("loop_runs")
class TestLoops:
    def test_the_loop_computes_the_reference(self, case: Case) -> None:
        found = case.operation(*case.arguments)
        right = case.operation.reference(*case.arguments)
        wide = [
            a.float() if isinstance(a, Tensor) and a.dtype is BF16 else a for a in case.arguments
        ]
        assert found.dtype is right.dtype is BF16
        assert found.shape == right.shape
        # A rounding of the result to bfloat16 and two on the way, in either.
        size = case.operation.reference(*wide).abs().max()
        assert float((found.float() - right.float()).abs().max()) <= 3 * 2.0**-8 * float(size)

    def test_torch_checks_the_registration(self, case: Case) -> None:
        """Schema, autograd, fake kernel, and tracing with dynamic shapes."""
        torch.library.opcheck(case.operation.registered, case.arguments)
        assert torch.equal(
            case.operation.registered(*case.arguments), case.operation(*case.arguments)
        )

    def test_gradients_are_refused(self, case: Case) -> None:
        places = floats(case.arguments)
        assert places
        for place in places:
            wanted = requiring_grad(case.arguments, place)
            for call in (case.operation, case.operation.registered):
                with pytest.raises(UnsupportedModel, match=f"^{case.operation.name} has no grad"):
                    call(*wanted)
            with torch.no_grad():
                found = case.operation(*wanted)
            assert not found.requires_grad
            assert torch.equal(found, case.operation(*case.arguments))

    def test_inference_mode(self, case: Case) -> None:
        right = case.operation(*case.arguments)
        with torch.inference_mode():
            for call in (case.operation, case.operation.registered):
                made = [a.clone() if isinstance(a, Tensor) else a for a in case.arguments]
                assert torch.equal(call(*made), right)
                found = call(*requiring_grad(case.arguments, 0))
                assert torch.equal(found, right)

    def test_fake_tensors_are_never_read(self, case: Case) -> None:
        mode = FakeTensorMode()
        fake = [mode.from_tensor(a) if isinstance(a, Tensor) else a for a in case.arguments]
        right = case.operation(*case.arguments)
        outside = case.operation(*fake)
        with mode:
            inside = case.operation(*fake)
        for found in (outside, inside):
            assert (found.shape, found.dtype) == (right.shape, right.dtype)

    def test_compiled_graphs_hold_the_operation(self, case: Case) -> None:
        graphs: list[torch.fx.GraphModule] = []

        def keep(graph: torch.fx.GraphModule, _: list[Tensor]) -> Callable[..., Any]:
            graphs.append(graph)
            return graph.forward

        torch.compiler.reset()
        run = torch.compile(lambda *a: case.operation(*a) * 2, backend=keep, fullgraph=True)
        found = run(*case.arguments)
        assert torch.equal(found, 2 * case.operation(*case.arguments))
        assert [graph.code.count(f"paceline.{case.operation.name}") for graph in graphs] == [1]


@pytest.mark.usefixtures("no_loop_runs")
class TestReferences:
    def test_torch_checks_the_registration(self, case: Case) -> None:
        torch.library.opcheck(case.operation.registered, case.arguments)
        assert torch.equal(
            case.operation(*case.arguments), case.operation.reference(*case.arguments)
        )

    def test_what_the_loop_does_not_compute_has_gradients(self, case: Case) -> None:
        wide = tuple(
            a.double() if isinstance(a, Tensor) and a.dtype is BF16 else a for a in case.arguments
        )
        places = [i for i in floats(wide) if wide[i].dtype is torch.float64]
        for call in (case.operation, case.operation.registered):
            wanted = tuple(
                a.clone().requires_grad_() if i in places else a for i, a in enumerate(wide)
            )
            assert call(*wanted).requires_grad

    def test_meta_tensors(self, case: Case) -> None:
        made = [a.to("meta") if isinstance(a, Tensor) else a for a in case.arguments]
        found = case.operation(*made)
        assert found.is_meta
        assert found.shape == case.operation(*case.arguments).shape


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_the_gradients_of_a_float_norm_rotation_and_gate_are_right(dtype: torch.dtype) -> None:
    """Against finite differences in float64; in float32 there are some."""
    x, weight = normal(2, 32, dtype=dtype), normal(32, seed=1, dtype=dtype)
    heads = normal(2, 3, 32, seed=2, dtype=dtype)
    cos, sin = normal(2, 1, 32, seed=3, dtype=dtype), normal(2, 1, 32, seed=4, dtype=dtype)
    for tensor in (x, weight, heads, cos, sin):
        tensor.requires_grad_()
    if dtype is torch.float32:
        assert row_operations.rms_norm(x, weight, 1e-6).requires_grad
        assert row_operations.gated(x, silu).requires_grad
        assert row_operations.rotate(heads, cos, sin).requires_grad
        return
    for activation in (silu, gelu):
        assert torch.autograd.gradcheck(lambda x: row_operations.gated(x, activation), x)  # noqa: B023
    assert torch.autograd.gradcheck(row_operations.rotate, (heads, cos, sin))


def layers() -> Iterator[Any]:
    for kind in (PackedLinear, Int8Linear):
        yield pytest.param(kind, id=kind.__name__)
    yield pytest.param(lambda w, b: Int4Linear(w, b, AtenProduct), id="Int4Linear-torch")
    for build, id_, is_available in (
        (Bfloat16Linear, "Bfloat16Linear", bfloat16_loops.is_available),
        (lambda w, b: Int4Linear(w, b, VnniProduct), "Int4Linear-vnni", vnni_loops.is_available),
    ):
        missing = pytest.mark.skipif(not is_available(), reason="not available here")
        yield pytest.param(build, id=id_, marks=missing)


LAYERS = list(layers())


class TestLayers:
    """The layers whose product has no gradients refuse to be trained, and to be trained through."""

    @pytest.mark.parametrize("build", LAYERS)
    def test_gradients_are_refused(self, build: Any) -> None:
        weight, bias = rows(32, 64), rows(32, seed=1)
        layer = build(weight, bias)
        x, residual = rows(3, 64, seed=2), rows(3, 32, seed=3)
        right = layer(x, residual)
        for wanted in (
            (x.clone().requires_grad_(), residual),
            (x, residual.clone().requires_grad_()),
        ):
            with pytest.raises(UnsupportedModel, match=r"has no gradients.*storage='plain'"):
                layer(*wanted)
            with torch.no_grad():
                assert torch.equal(layer(*wanted), right)
            with torch.inference_mode():
                assert torch.equal(layer(*wanted), right)

    @pytest.mark.parametrize("build", LAYERS)
    def test_weights_that_require_grad_are_refused(self, build: Any) -> None:
        weight, bias = rows(32, 64).requires_grad_(), rows(32, seed=1)
        with pytest.raises(UnsupportedModel, match="has no gradients"):
            build(weight, bias)
        with pytest.raises(UnsupportedModel, match="has no gradients"):
            build(weight.detach(), bias.requires_grad_())
        with torch.no_grad():
            build(weight, bias)

    def test_a_plain_layer_has_gradients(self) -> None:
        weight, x = normal(32, 64).requires_grad_(), normal(3, 64, seed=2).requires_grad_()
        PlainLinear(weight, None)(x, normal(3, 32, seed=3)).sum().backward()
        assert weight.grad is not None
        assert x.grad is not None
