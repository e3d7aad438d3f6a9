"""Loops that are compiled for this processor, and run by the threads that torch has already.

LLVM (llvmlite, of the extra `fast`) writes them. They run in the OpenMP of torch: threads of their
own would fight with those of torch, which spin between products.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

MAPS = Path("/proc/self/maps")
"""What is loaded, as Linux tells it."""


class Team:
    """The OpenMP threads of torch: they run one function together.

    Raises:
        OSError: torch runs without OpenMP, or with one that cannot be called.
    """

    def __init__(self) -> None:
        library = ctypes.CDLL(_openmp())
        try:
            self._parallel = library.GOMP_parallel
            told = (library.omp_get_thread_num, library.omp_get_num_threads)
        except AttributeError as error:
            raise OSError(str(error)) from error
        self.functions = [ctypes.cast(function, ctypes.c_void_p).value or 0 for function in told]
        """Where the functions are that tell the number of a thread, and how many there are."""
        unsigned = ctypes.c_uint
        self._parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, unsigned, unsigned]
        self._parallel.restype = None

    def run(self, function: int, arguments: ctypes.Array[ctypes.c_int64], threads: int) -> None:
        """Call a function, which takes the address of its arguments, in so many threads."""
        self._parallel(function, arguments, threads, 0)


def _openmp() -> str:
    """The file of the OpenMP that is loaded: of several, the one that comes with torch."""
    lines = MAPS.read_text(errors="surrogateescape").splitlines()
    mapped = (line.split(maxsplit=5) for line in lines)
    files = [Path(fields[5]) for fields in mapped if len(fields) == 6]
    found = [file for file in files if file.name.startswith(("libgomp", "libiomp5"))]
    own = Path(torch.__file__).parent
    for file in sorted(found, key=lambda file: own not in file.parents):
        return str(file)
    raise OSError("no OpenMP is loaded")


class Code:
    """Machine code of a module of LLVM. It lives as long as this does.

    Args:
        source: LLVM's textual form.

    Raises:
        RuntimeError: LLVM does not take it.
    """

    def __init__(self, source: str) -> None:
        from llvmlite import binding

        binding.initialize_native_target()
        binding.initialize_native_asmprinter()
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


def has_instructions(*names: str) -> bool:
    """Whether llvmlite is there and the processor has these, in LLVM's names."""
    try:
        from llvmlite import binding

        features = binding.get_host_cpu_features()
    except (ImportError, RuntimeError):
        return False
    return all(features.get(name, False) for name in names)


def loop(
    builder: Any,
    start: Any,
    end: Any,
    carried: Sequence[Any],
    body: Callable[[Any, list[Any]], Sequence[Any]],
) -> list[Any]:
    """Write `for index in range(start, end): carried = body(index, carried)`; returns `carried`."""
    entry = builder.block
    head, inside, behind = (builder.append_basic_block() for _ in range(3))
    builder.branch(head)
    builder.position_at_end(head)
    index = builder.phi(start.type)
    index.add_incoming(start, entry)
    values = [builder.phi(value.type) for value in carried]
    for value, first in zip(values, carried, strict=True):
        value.add_incoming(first, entry)
    builder.cbranch(builder.icmp_signed("<", index, end), inside, behind)
    builder.position_at_end(inside)
    later = body(index, values)
    index.add_incoming(builder.add(index, start.type(1)), builder.block)
    for value, new in zip(values, later, strict=True):
        value.add_incoming(new, builder.block)
    builder.branch(head)
    builder.position_at_end(behind)
    return values
