"""Loops that are compiled for this processor, and run by the threads that torch has already.

LLVM (llvmlite, of the extra `fast`) writes them. They run in the OpenMP of torch: threads of their
own would fight with those of torch, which spin between products.
"""

from __future__ import annotations

import ctypes
import logging
import struct
from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

MAPS = Path("/proc/self/maps")
"""What is loaded, as Linux tells it."""

Key = TypeVar("Key", bound=Hashable)

FAILURES = (AttributeError, OSError, RuntimeError, TypeError, ValueError)
"""What comes of another llvmlite, or where no OpenMP is found. torch can do the same."""

log = logging.getLogger("paceline")


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


def has_instructions(*names: str) -> bool:
    """Whether llvmlite is there and the processor has these, in LLVM's names."""
    try:
        from llvmlite import binding

        features = binding.get_host_cpu_features()
    except (ImportError, OSError, RuntimeError):  # missing, or without its library
        return False
    return all(features.get(name, False) for name in names)


def float_bits(number: float) -> int:
    """A float32 as an argument, which is an integer of the same bits.

    >>> hex(float_bits(1.0))
    '0x3f800000'
    """
    bits: int = struct.unpack("<i", struct.pack("<f", number))[0]
    return bits


def compiles(functions: Callable[[], object], *instructions: str) -> bool:
    """Whether the processor has these instructions, and the functions can be compiled and called.

    Why they cannot is told in the log.
    """
    if not has_instructions(*instructions):
        return False
    try:
        functions()
    except FAILURES as error:
        log.info("torch in place of compiled loops: %s", error)
        return False
    return True


class Functions(Generic[Key]):
    """Functions that are compiled together, and run by the threads of torch.

    Args:
        keys: what they are called by.
        write: writes them into a module. It is given a name for each key, and `Team.functions`.

    Raises:
        FAILURES: they cannot be compiled, or there is no team.
    """

    def __init__(
        self, keys: Iterable[Key], write: Callable[[Any, dict[Key, str], list[int]], object]
    ) -> None:
        from llvmlite import ir

        self._team = Team()
        names = {key: f"function_{number}" for number, key in enumerate(keys)}
        module = ir.Module("paceline")
        write(module, names, self._team.functions)
        self._code = Code(str(module))
        self._address = {key: self._code[name] for key, name in names.items()}

    def __deepcopy__(self, memo: object) -> Functions[Key]:
        """Code is shared by the copies of what calls it."""
        return self

    def run(self, key: Key, arguments: Sequence[int], threads: int) -> None:
        """Call one with these numbers; it is given their address."""
        numbers = (ctypes.c_int64 * len(arguments))(*arguments)
        self._team.run(self._address[key], numbers, threads)
