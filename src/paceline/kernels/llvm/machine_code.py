"""Loops that are compiled for this processor, and run by torch's threads.

LLVM (llvmlite, in the extra `fast`) compiles them. They run in the OpenMP runtime of torch: other
threads would compete with those of torch, which spin between products.
"""

from __future__ import annotations

import ctypes
import functools
import logging
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from paceline.kernels.llvm.records import layout

MAPS = Path("/proc/self/maps")
"""The files that this process has loaded, as Linux lists them."""

Key = TypeVar("Key", bound=Hashable)
Record = TypeVar("Record", bound=tuple[Any, ...])

FAILURES = (AttributeError, OSError, RuntimeError, TypeError, ValueError)
"""What other versions of llvmlite or OpenMP may raise. torch computes the same without them."""

log = logging.getLogger("paceline")


class Team:
    """The OpenMP threads of torch: they run one function together.

    A parallel region is started by `GOMP_parallel`, which GNU's and LLVM's runtimes export under
    Linux. The function is looked up in the runtime that torch itself loaded, because a second
    runtime would start its own threads. A trial region shows whether it works as expected.

    Raises:
        OSError: torch runs without OpenMP, or with a runtime that cannot be called like this, as
            under macOS and Windows.
    """

    def __init__(self) -> None:
        if not torch.backends.openmp.is_available():
            raise OSError("torch runs without OpenMP")
        library = ctypes.CDLL(_openmp())
        try:
            self._parallel = library.GOMP_parallel
            queries = (library.omp_get_thread_num, library.omp_get_num_threads)
        except AttributeError as error:
            raise OSError(str(error)) from error
        self.queries = [ctypes.cast(query, ctypes.c_void_p).value or 0 for query in queries]
        """The addresses of the functions that return a thread's number and the thread count."""
        unsigned = ctypes.c_uint
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, unsigned, unsigned]
        self._parallel.restype = None
        self._try(*queries)

    def run(self, function: int, arguments: bytes, threads: int) -> None:
        """Call a function with the address of its arguments in `threads` threads."""
        self._parallel(function, arguments, threads, 0)

    def _try(self, number: Callable[[], int], count: Callable[[], int]) -> None:
        """Check that a region of two threads runs in two threads."""
        found: list[tuple[int, int]] = []
        report = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(
            lambda _: found.append((number(), count()))
        )
        address = ctypes.cast(report, ctypes.c_void_p).value or 0
        self.run(address, b"", 2)
        if sorted(found) not in ([(0, 1)], [(0, 2), (1, 2)]):
            raise OSError(f"the OpenMP runtime of torch ran two threads as {found}")


def _openmp() -> str:
    """The file of the loaded OpenMP runtime; if there are several, the one that torch brings."""
    lines = MAPS.read_text(errors="surrogateescape").splitlines()
    mapped = (line.split(maxsplit=5) for line in lines)
    files = [Path(fields[5]) for fields in mapped if len(fields) == 6]
    found = [file for file in files if file.name.startswith(("libgomp", "libiomp5", "libomp"))]
    own = Path(torch.__file__).parent
    for file in sorted(found, key=lambda file: own not in file.parents):
        return str(file)
    raise OSError("no OpenMP is loaded")


class Code:
    """Machine code of an LLVM module. It is freed with this object.

    Args:
        source: the module in LLVM's textual form.

    Raises:
        RuntimeError: LLVM rejects it.
    """

    def __init__(self, source: str) -> None:
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
        binding.initialize_native_asmparser()  # without it, LLVM aborts at inline assembly
        machine = binding.Target.from_default_triple().create_target_machine(
            cpu=binding.get_host_cpu_name(),
            features=binding.get_host_cpu_features().flatten(),
            opt=3,
        )
        module = binding.parse_assembly(source)
        module.verify()
        self._engine = binding.create_mcjit_compiler(module, machine)
        self._engine.finalize_object()

    def __getitem__(self, name: str) -> int:
        """The address of a function."""
        address: int = self._engine.get_function_address(name)
        return address


class Function(Generic[Record]):
    """A compiled function of one record, run by the threads of torch.

    Args:
        code: the code that it is part of.
        name: its name there.
        record: the type of its arguments, see `records`.
        team: the threads that run it.
    """

    def __init__(self, code: Code, name: str, record: type[Record], team: Team) -> None:
        self._code, self._team = code, team
        self._address = code[name]
        self._alone = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._address)
        self._pack = layout(record).pack

    def __call__(self, record: Record, threads: int) -> None:
        """Call it in `threads` threads, each with the address of the packed record."""
        arguments = self._pack(*record)
        if threads == 1:
            self._alone(arguments)
        else:
            self._team.run(self._address, arguments, threads)

    def __deepcopy__(self, memo: object) -> Function[Record]:
        """Copies share the code."""
        return self


def compile_functions(
    record: type[Record],
    keys: Iterable[Key],
    write: Callable[[Any, dict[Key, str], list[int]], object],
) -> dict[Key, Function[Record]]:
    """Compile functions that take the same record.

    Args:
        record: the type of their arguments, see `records`.
        keys: a key for each function.
        write: writes them into a module, given a name for each key and `Team.queries`.

    Raises:
        FAILURES: they cannot be compiled, or there is no team.
    """
    from llvmlite import ir

    team = _team()
    names = {key: f"function_{number}" for number, key in enumerate(keys)}
    module = ir.Module("paceline")
    write(module, names, team.queries)
    code = Code(str(module))
    return {key: Function(code, name, record, team) for key, name in names.items()}


@functools.cache
def _team() -> Team:
    return Team()


def has_instructions(*names: str) -> bool:
    """Whether llvmlite is installed and the processor has these instructions, by LLVM's names.

    If llvmlite is missing on a processor with AVX-512, a warning in the log says what that
    costs.
    """
    try:
        from llvmlite import binding

        features = binding.get_host_cpu_features()
    except (ImportError, OSError, RuntimeError) as error:  # missing, or its library is
        if "AVX512" in torch.backends.cpu.get_cpu_capability():
            _warn(f"llvmlite is missing ({error}); install it with pip install 'paceline[fast]'")
        return False
    return all(features.get(name, False) for name in names)


def compiles(functions: Callable[[], object], *instructions: str) -> bool:
    """Whether the processor has these instructions, and the functions can be compiled and called.

    If they cannot, a warning in the log says why and what it costs.
    """
    if not has_instructions(*instructions):
        return False
    try:
        functions()
    except FAILURES as error:
        _warn(f"they cannot be compiled or called here: {error}")
        return False
    return True


@functools.cache
def _warn(reason: str) -> None:
    """Warn once per process and reason."""
    log.warning(
        "the compiled loops do not run and torch's kernels are used instead: passes in bfloat16 "
        "over several rows and drafts in int4 take up to twice as long. Reason: %s",
        reason,
    )
