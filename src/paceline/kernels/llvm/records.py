"""Arguments of a compiled loop as one record, whose fields both sides access by name.

A record is a `NamedTuple` whose fields are annotated as `Pointer`, `Integer` or `Float`. The caller
fills it with numbers and the loop's `Function` packs it; `Writer.record` gives the code that is
being written the same record, filled with LLVM values. Neither side knows the order of the fields.
"""

from __future__ import annotations

import struct
from enum import Enum
from typing import Annotated, Any, NamedTuple, get_args, get_type_hints


class Kind(Enum):
    """The format of a field in memory, as a format of `struct`. Each takes `FIELD_BYTES`."""

    POINTER = "P"
    INTEGER = "q"
    FLOAT = "f4x"


FIELD_BYTES = 8

Pointer = Annotated[Any, Kind.POINTER]
"""An address: `Tensor.data_ptr()`."""

Integer = Annotated[Any, Kind.INTEGER]
"""A signed integer of 64 bits."""

Float = Annotated[Any, Kind.FLOAT]
"""A float32."""


class _Example(NamedTuple):
    x: Pointer
    rows: Integer
    scale: Float


def kinds(record: type[Any]) -> dict[str, Kind]:
    """The fields of a record in memory order.

    Raises:
        TypeError: a field has another annotation.

    >>> list(kinds(_Example))
    ['x', 'rows', 'scale']
    """
    found = {}
    for name, hint in get_type_hints(record, include_extras=True).items():
        kind = next((extra for extra in get_args(hint)[1:] if isinstance(extra, Kind)), None)
        if kind is None:
            raise TypeError(
                f"{record.__name__}.{name} must be a Pointer, an Integer or a Float; it is {hint}"
            )
        found[name] = kind
    return found


def layout(record: type[Any]) -> struct.Struct:
    """The format that packs a record.

    >>> layout(_Example).pack(*_Example(x=1, rows=2, scale=1.0))[16:20].hex()
    '0000803f'
    """
    made = struct.Struct("@" + "".join(kind.value for kind in kinds(record).values()))
    if made.size != FIELD_BYTES * len(kinds(record)):
        raise OSError("compiled loops need a processor with addresses of 64 bits")
    return made


def record_bytes(record: type[Any]) -> int:
    """The bytes that a record takes.

    >>> record_bytes(_Example)
    24
    """
    return FIELD_BYTES * len(kinds(record))
