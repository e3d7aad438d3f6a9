"""One-line messages for errors in other libraries."""

from __future__ import annotations

from functools import cache


def one_line(error: BaseException) -> str:
    r"""The message of an error without line breaks, or its type if it has none.

    >>> one_line(ValueError("bad field:\n    it is 3"))
    'bad field: it is 3'
    """
    return " ".join(str(error).split()) or type(error).__name__


@cache
def what_transformers_raises() -> tuple[type[Exception], ...]:
    """The errors that transformers raises when files do not hold what it expects."""
    from huggingface_hub.errors import StrictDataclassError

    return (
        StrictDataclassError,  # a config with values of the wrong type
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        AssertionError,
        RuntimeError,
        OSError,
        ImportError,
    )
