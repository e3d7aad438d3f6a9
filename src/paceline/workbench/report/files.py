"""The files that reports are written to, checked before the work starts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from paceline.checks import require_writable
from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Outputs:
    """Files to write at the end, checked now.

    Args:
        paths: the option that names a file, and the file; None if it was left out.

    Raises:
        InvalidInput: a file cannot be written, or two options name the same file.

    Example:
        >>> Outputs({"--html": None}).write({"--html": lambda: "never called"})
        []
    """

    paths: Mapping[str, Path | None]

    def __post_init__(self) -> None:
        seen: dict[Path, str] = {}
        for option, path in self.paths.items():
            if path is None:
                continue
            require_writable(option, path)
            first = seen.setdefault(path.resolve(), option)
            if first != option:
                raise InvalidInput(f"{first} and {option} both name {path}; give each its own file")

    def write(self, contents: Mapping[str, object]) -> list[Path]:
        """Write each text, or the result of a function without arguments; returns the files.

        Raises:
            InvalidInput: a file cannot be written any more.
        """
        written = []
        for option, path in self.paths.items():
            if path is None:
                continue
            content = contents[option]
            text = content() if callable(content) else content
            try:
                path.write_text(str(text), encoding="utf-8")
            except OSError as error:
                raise InvalidInput(f"{option}: cannot write {path}: {error.strerror}") from error
            written.append(path)
        return written
