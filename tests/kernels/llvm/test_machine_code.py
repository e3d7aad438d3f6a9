"""Functions compiled from LLVM's text, called alone and by the threads of torch."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from paceline.kernels.llvm import bfloat16, few_rows, machine_code, row_operations, vnni
from paceline.kernels.llvm.machine_code import (
    FAILURES,
    Code,
    Functions,
    Team,
    compiles,
    has_instructions,
)

ir = pytest.importorskip("llvmlite.ir")

I64 = ir.IntType(64)


def number(code: Code, *arguments: int) -> int:
    kind = ctypes.CFUNCTYPE(ctypes.c_int64, *[ctypes.c_int64] * len(arguments))
    return kind(code["function"])(*arguments)


def function(*arguments: ir.Type, result: ir.Type = I64) -> tuple[ir.Module, ir.Function]:
    module = ir.Module()
    return module, ir.Function(module, ir.FunctionType(result, arguments), "function")


def test_what_is_no_module_is_refused() -> None:
    with pytest.raises(RuntimeError, match="expected"):
        Code("a poem")


def test_every_thread_of_a_team_runs_the_function() -> None:
    team = Team()
    pointer = ir.PointerType()
    module, made = function(pointer, result=ir.VoidType())
    builder = ir.IRBuilder(made.append_basic_block())
    tell = ir.FunctionType(ir.IntType(32), []).as_pointer()
    own, all_of_them = (
        builder.zext(builder.call(builder.inttoptr(I64(address), tell), []), I64)
        for address in team.functions
    )
    place = builder.gep(made.args[0], [own], source_etype=I64)
    builder.store(builder.add(builder.mul(own, I64(10)), all_of_them), place)
    builder.ret_void()
    code = Code(str(module))
    for threads in (1, 2, 3):
        told = (ctypes.c_int64 * 4)(-1, -1, -1, -1)
        team.run(code["function"], told, threads)
        assert list(told) == [10 * i + threads for i in range(threads)] + [-1] * (4 - threads)


def test_without_openmp_there_is_no_team(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    maps = tmp_path / "maps"
    maps.write_text("7f00-7f01 r-xp 0 00:00 0 /lib/libc.so.6\n")
    monkeypatch.setattr(machine_code, "MAPS", maps)
    with pytest.raises(OSError, match="no OpenMP is loaded"):
        Team()


def test_of_several_the_one_of_torch_is_called(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Path(torch.__file__).parent / "lib" / "libgomp.so.1"
    others = "/opt/some libs/libgomp-1.so", "/opt/libiomp5.so"
    maps = tmp_path / "maps"
    start = "7f00-7f01 r-xp 00000000 00:00 1 "
    maps.write_text("7f00-7f01 rw-p 0 00:00 0\n" + "\n".join(start + f for f in others))
    monkeypatch.setattr(machine_code, "MAPS", maps)
    assert machine_code._openmp() == others[0]
    maps.write_text("\n".join(f"{start}{file}" for file in (*others, own)))
    assert machine_code._openmp() == str(own)


def test_instructions() -> None:
    assert has_instructions()
    assert not has_instructions("of a machine that is not built")
    if "AVX512" in torch.backends.cpu.get_cpu_capability():
        assert has_instructions("avx512f")


def test_functions_are_called_by_their_keys() -> None:
    def write(module: ir.Module, names: dict[str, str], team: list[int]) -> None:
        assert len(team) == 2
        for key, name in names.items():
            kind = ir.FunctionType(ir.VoidType(), [ir.PointerType()])
            made = ir.Function(module, kind, name)
            builder = ir.IRBuilder(made.append_basic_block())
            first = builder.load(made.args[0], typ=I64)
            builder.store(I64(len(key)), builder.inttoptr(first, ir.PointerType()))
            builder.ret_void()

    functions = Functions(["a", "three", "of them"], write)
    told = ctypes.c_int64(0)
    for key in ("three", "a", "of them"):
        functions.run(key, (ctypes.addressof(told),), 1)
        assert told.value == len(key)


def test_a_library_that_cannot_be_loaded_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise OSError("libllvmlite.so: cannot open shared object file")

    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", broken)
    assert not has_instructions("avx512f")
    assert not compiles(lambda: pytest.fail("compiled"), "avx512f")


@pytest.mark.parametrize("error", [*FAILURES, None])
def test_whether_functions_compile(
    error: type[Exception] | None, caplog: pytest.LogCaptureFixture
) -> None:
    def functions() -> None:
        if error is not None:
            raise error("no OpenMP is loaded")

    with caplog.at_level("INFO", "paceline"):
        assert compiles(functions) == (error is None)
    assert ("no OpenMP is loaded" in caplog.text) == (error is not None)


class TestWhetherLoopsWork:
    """Each kind of compiled loop asks once, and leaves the rest to torch where it has no answer."""

    KINDS: ClassVar = [
        (bfloat16, bfloat16.bfloat16_works),
        (few_rows, few_rows.works),
        (row_operations, row_operations.compiled_work),
        (vnni, vnni.vnni_works),
    ]

    @pytest.fixture(autouse=True)
    def _forget(self) -> Iterator[None]:
        for _, works in self.KINDS:
            works.cache_clear()
        yield
        for _, works in self.KINDS:
            works.cache_clear()

    @pytest.mark.parametrize(("module", "works"), KINDS)
    @pytest.mark.parametrize("error", [OSError("no OpenMP"), RuntimeError("LLVM"), TypeError()])
    def test_where_they_cannot_be_compiled_it_is_tried_once(
        self, module: Any, works: Any, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries: list[None] = []

        def fail(*_: int) -> None:
            tries.append(None)
            raise error

        monkeypatch.setattr(machine_code, "has_instructions", lambda *names: True)
        monkeypatch.setattr(module, "_functions", fail)
        assert not works()
        assert not works()
        assert len(tries) == 1

    @pytest.mark.parametrize(("module", "works"), KINDS)
    def test_other_processors(
        self, module: Any, works: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, "_functions", lambda *_: pytest.fail("compiled"))
        monkeypatch.setattr(machine_code, "has_instructions", lambda *names: False)
        assert not works()
