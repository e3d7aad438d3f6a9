"""Functions compiled from LLVM's text, called alone and by the threads of torch."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest
import torch

from paceline.kernels.llvm import attention, bfloat16, machine_code, row_operations, vnni
from paceline.kernels.llvm.machine_code import (
    FAILURES,
    Code,
    Team,
    compile_functions,
    compiles,
    has_instructions,
)
from paceline.kernels.llvm.records import Float, Integer, Pointer
from paceline.kernels.llvm.vector_code import Writer

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
    query = ir.FunctionType(ir.IntType(32), []).as_pointer()
    own, all_of_them = (
        builder.zext(builder.call(builder.inttoptr(I64(address), query), []), I64)
        for address in team.queries
    )
    place = builder.gep(made.args[0], [own], source_etype=I64)
    builder.store(builder.add(builder.mul(own, I64(10)), all_of_them), place)
    builder.ret_void()
    code = Code(str(module))
    for threads in (1, 2, 3):
        found = (ctypes.c_int64 * 4)(-1, -1, -1, -1)
        team.run(code["function"], found, threads)
        assert list(found) == [10 * i + threads for i in range(threads)] + [-1] * (4 - threads)


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


class Arguments(NamedTuple):
    place: Pointer
    number: Integer
    factor: Float


@pytest.mark.parametrize("threads", [1, 2])
def test_functions_are_called_by_their_keys_and_read_their_record_by_name(threads: int) -> None:
    def write(module: ir.Module, names: dict[str, str], team: list[int]) -> None:
        assert len(team) == 2
        for key, name in names.items():
            writer = Writer(module, name, "pointer")
            b, arguments = writer.b, writer.record(Arguments, writer.function.args[0])
            number = b.sitofp(b.add(arguments.number, I64(len(key))), writer.t.f32)
            b.store(b.fmul(number, arguments.factor), arguments.place)
            b.ret_void()

    functions = compile_functions(Arguments, ["a", "three", "of them"], write)
    found = ctypes.c_float(0)
    for key in ("three", "a", "of them"):
        arguments = Arguments(factor=0.5, number=-100, place=ctypes.addressof(found))
        functions[key](arguments, threads)
        assert found.value == (len(key) - 100) / 2
    assert copy.deepcopy(functions["a"]) is functions["a"]


def test_a_runtime_that_runs_regions_otherwise_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be asked for threads, and do something else."""

    def twice(self: Team, function: int, arguments: bytes, threads: int) -> None:
        for _ in range(2):
            ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function)(arguments)

    monkeypatch.setattr(Team, "run", twice)
    with pytest.raises(OSError, match=r"ran two threads as \[\(0, 1\), \(0, 1\)\]"):
        Team()


def test_torch_without_openmp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.backends.openmp.is_available", lambda: False)
    with pytest.raises(OSError, match="torch runs without OpenMP"):
        Team()


def test_a_runtime_without_the_entry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine_code, "_openmp", lambda: None)  # the process itself
    monkeypatch.setattr("ctypes.CDLL", lambda file: object())
    with pytest.raises(OSError, match="GOMP_parallel"):
        Team()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Iterator[pytest.LogCaptureFixture]:
    """What is logged, each warning for the first time."""
    machine_code._warn.cache_clear()
    with caplog.at_level("WARNING", "paceline"):
        yield caplog
    machine_code._warn.cache_clear()


@pytest.mark.parametrize("capability", ["AVX512", "AVX2", "DEFAULT"])
def test_a_library_that_cannot_be_loaded_is_none_and_is_missed_where_it_would_help(
    capability: str, monkeypatch: pytest.MonkeyPatch, warnings: pytest.LogCaptureFixture
) -> None:
    def broken() -> None:
        raise OSError("libllvmlite.so: cannot open shared object file")

    monkeypatch.setattr("llvmlite.binding.get_host_cpu_features", broken)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: capability)
    for _ in range(2):
        assert not has_instructions("avx512f")
        assert not compiles(lambda: pytest.fail("compiled"), "avx512f")
    expected = 1 if capability == "AVX512" else 0
    assert warnings.text.count("pip install 'paceline[fast]'") == expected
    assert len(warnings.records) == expected


@pytest.mark.parametrize("error", [*FAILURES, None])
def test_whether_functions_compile(
    error: type[Exception] | None, warnings: pytest.LogCaptureFixture
) -> None:
    def functions() -> None:
        if error is not None:
            raise error("no OpenMP is loaded")

    for _ in range(2):
        assert compiles(functions) == (error is None)
    assert warnings.text.count("no OpenMP is loaded") == (error is not None)
    assert ("up to twice as long" in warnings.text) == (error is not None)


class TestAvailability:
    """Each kind of loop asks once, and leaves the rest to torch where it is not available."""

    KINDS: ClassVar = [
        (attention, "functions"),
        (bfloat16, "functions"),
        (row_operations, "norm"),
        (vnni, "functions"),
    ]

    @pytest.fixture(autouse=True)
    def _forget(self) -> Iterator[None]:
        for module, _ in self.KINDS:
            module.is_available.cache_clear()
        machine_code._warn.cache_clear()
        yield
        for module, _ in self.KINDS:
            module.is_available.cache_clear()
        machine_code._warn.cache_clear()

    @pytest.mark.parametrize(("module", "functions"), KINDS)
    @pytest.mark.parametrize("error", [OSError("no OpenMP"), RuntimeError("LLVM"), TypeError()])
    def test_where_they_cannot_be_compiled_it_is_tried_once(
        self, module: Any, functions: str, error: Exception, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        tries: list[None] = []

        def fail(*_: int) -> None:
            tries.append(None)
            raise error

        monkeypatch.setattr(machine_code, "has_instructions", lambda *names: True)
        monkeypatch.setattr(module, functions, fail)
        assert not module.is_available()
        assert not module.is_available()
        assert len(tries) == 1

    @pytest.mark.parametrize(("module", "functions"), KINDS)
    def test_other_processors(
        self, module: Any, functions: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(module, functions, lambda *_: pytest.fail("compiled"))
        monkeypatch.setattr(machine_code, "has_instructions", lambda *names: False)
        assert not module.is_available()
