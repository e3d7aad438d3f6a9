"""The phrases of compiled loops, compiled and called."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import pytest
import torch

from paceline.kernels.llvm.machine_code import Code
from paceline.kernels.llvm.records import Integer, layout
from paceline.kernels.llvm.vector_code import LANES, Writer, loop
from tests.kernels.llvm.test_machine_code import I64, function, number

ir = pytest.importorskip("llvmlite.ir")


@pytest.mark.parametrize(("start", "end"), [(0, 0), (0, 1), (3, 10), (5, 2)])
def test_a_loop_carries_its_values(start: int, end: int) -> None:
    module, made = function(I64, I64)
    builder = ir.IRBuilder(made.append_basic_block())

    def body(index, carried):
        total, product = carried
        return builder.add(total, index), builder.mul(product, I64(3))

    total, product = loop(builder, *made.args, [I64(0), I64(1)], body)
    builder.ret(builder.add(builder.mul(total, I64(1000)), product))
    expected = 1000 * sum(range(start, end)) + 3 ** len(range(start, end))
    assert number(Code(str(module)), start, end) == expected


def test_loops_stand_in_loops() -> None:
    module, made = function(I64)
    builder = ir.IRBuilder(made.append_basic_block())
    size = made.args[0]

    def row(i, carried):
        return loop(builder, I64(0), i, carried, lambda j, c: [builder.add(c[0], j)])

    builder.ret(loop(builder, I64(0), size, [I64(0)], row)[0])
    assert number(Code(str(module)), 7) == sum(j for i in range(7) for j in range(i))


def call(writer: Writer, *tensors: torch.Tensor) -> None:
    code = Code(str(writer.module))
    kind = ctypes.CFUNCTYPE(None, *[ctypes.c_void_p] * len(tensors))
    kind(code["function"])(*(tensor.data_ptr() for tensor in tensors))


def writer(*arguments: str) -> tuple[Writer, Any]:
    made = Writer(ir.Module(), "function", *arguments)
    return made, made.function.args


def test_bfloat16_to_floats_and_back() -> None:
    made, (x, wide, narrow) = writer("pointer", "pointer", "pointer")
    floats = made.floats(x)
    made.b.store(floats, wide, align=1)
    made.b.store(made.bfloat16(made.load(wide, made.t.floats)), narrow, align=1)
    made.b.ret_void()
    numbers = torch.randn(LANES, generator=torch.Generator().manual_seed(0)).bfloat16()
    numbers[:3] = torch.tensor([torch.inf, -0.0, torch.nan])
    found, again = torch.empty(LANES), torch.empty(LANES, dtype=torch.bfloat16)
    call(made, numbers, found, again)
    torch.testing.assert_close(found, numbers.float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(again, numbers, rtol=0, atol=0, equal_nan=True)


def test_floats_are_rounded_as_torch_rounds_them() -> None:
    made, (wide, narrow) = writer("pointer", "pointer")
    made.b.store(made.bfloat16(made.load(wide, made.t.floats)), narrow, align=1)
    made.b.ret_void()
    half = 2.0**-8  # halfway between two bfloat16: to the even one
    numbers = torch.tensor([1 + half, 1 + 3 * half, 1 + half + 2**-20, 1 + half - 2**-20])
    numbers = torch.cat([numbers, -numbers, 1e38 * numbers, 1e-38 * numbers])
    found = torch.empty(LANES, dtype=torch.bfloat16)
    call(made, numbers, found)
    assert torch.equal(found, numbers.bfloat16())


def test_one_number_in_each_lane_and_addresses() -> None:
    made, (x, out) = writer("pointer", "pointer")
    third = made.load(made.at(x, 2, 4), made.t.f32)
    again = made.load(made.at(x, I64(2), 4), made.t.f32)
    made.b.store(made.broadcast(made.b.fadd(third, again), made.t.floats), out, align=1)
    made.b.ret_void()
    found = torch.empty(LANES)
    call(made, torch.arange(4.0), found)
    assert found.tolist() == [4.0] * LANES


class Share(NamedTuple):
    thread: Integer
    threads: Integer
    tasks: Integer


@pytest.mark.parametrize(("count", "threads"), [(7, 3), (2, 5), (0, 2), (16, 1)])
def test_every_task_is_one_threads(count: int, threads: int) -> None:
    made, (fields, out) = writer("pointer", "pointer")
    share = made.record(Share, fields)
    for i, end in enumerate(made.share(share.tasks, (share.thread, share.threads))):
        made.b.store(end, made.at(out, i, 8))
    made.b.ret_void()
    done: list[int] = []
    code = Code(str(made.module))
    run = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p)(code["function"])
    for thread in range(threads):
        given = layout(Share).pack(*Share(thread=thread, threads=threads, tasks=count))
        ends = torch.empty(2, dtype=torch.int64)
        run(given, ends.data_ptr())
        done += range(*ends.tolist())
    assert done == list(range(count))


def test_the_exponential() -> None:
    made, (x, out) = writer("pointer", "pointer")
    made.b.store(made.exponential(made.load(x, made.t.floats)), out, align=1)
    made.b.ret_void()
    numbers = torch.tensor([0.0, 1, -1, 0.3465, -0.3467, 10.5, -20, 60, -80, 88, -87, 5e-8, -3, 2])
    found = torch.empty(LANES)
    call(made, torch.cat([numbers, torch.tensor([100.0, 3e38])]), found)
    torch.testing.assert_close(found[:-2].double(), numbers.double().exp(), rtol=1e-5, atol=0)
    assert bool(found[-2:].isinf().all())
