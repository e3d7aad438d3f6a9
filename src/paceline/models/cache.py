"""Files that are kept on disk between runs: where they are, what they hold, who may write them.

Everything that is made once and kept (fetched and converted models) goes through `scratch_folder`:
one process makes it in a temporary folder beside its final place and then moves it there.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from paceline.cache_folder import cache_folder
from paceline.errors import ModelError

Progress = Callable[[int, int, str], None]
"""Reports the progress of a slow step: bytes done, bytes in total (0 if unknown), and a
description."""


def no_progress(done: int, total: int, text: str) -> None:
    """Report nothing."""


def read_json(file: Path) -> dict[str, Any] | None:
    """The object in a JSON file; None if there is no such file.

    Raises:
        ModelError: it does not hold a JSON object, or cannot be read.
    """
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ModelError(f"{file} is damaged ({error})") from error
    if not isinstance(value, dict):
        raise ModelError(f"{file} is damaged: expected a JSON object")
    return value


def content_digest(path: Path, progress: Progress = no_progress) -> str:
    """The SHA-256 of a file, in hexadecimal, computed once as long as the file does not change.

    Hashing a gigabyte takes seconds, so the digest is stored with the file's size, times and inode;
    if any of them differs, the file is read again.

    Raises:
        OSError: the file cannot be read.
    """
    stamp = _stamp(path)
    with suppress(OSError, ValueError, KeyError, TypeError):
        note = json.loads(_note(path).read_text(encoding="utf-8"))
        if note["stamp"] == stamp:
            return str(note["sha256"])
    progress(0, path.stat().st_size, f"checking {path.name}")
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    remember_digest(path, digest, stamp)
    return digest


def remember_digest(path: Path, digest: str, stamp: list[int] | None = None) -> None:
    """Store the digest of a file, so that `content_digest` need not read it."""
    note, stamp = _note(path), stamp or _stamp(path)
    # A cache that cannot be written only costs time at the next call.
    with suppress(OSError):
        note.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", dir=note.parent, delete=False, encoding="utf-8"
        ) as file:
            json.dump({"stamp": stamp, "sha256": digest}, file)
        os.replace(file.name, note)


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _note(path: Path) -> Path:
    name = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:32]
    return cache_folder() / "digests" / f"{name}.json"


@contextmanager
def scratch_folder(parent: Path, name: str, progress: Progress = no_progress) -> Iterator[Path]:
    """An empty folder in `parent`, for the one process that creates `name` there.

    A second process waits until the first is done, so it should check again for the result. The
    folder is always deleted afterwards; so is anything that a killed process left.

    Raises:
        OSError: `parent` cannot be written to.
    """
    from filelock import FileLock, Timeout

    parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(parent / f".{name}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        progress(0, 0, f"waiting for another process that creates {name}")
        lock.acquire()
    try:
        for left_over in parent.glob(f".{name}-*"):
            shutil.rmtree(left_over, ignore_errors=True)
        with tempfile.TemporaryDirectory(dir=parent, prefix=f".{name}-") as scratch:
            yield Path(scratch)
    finally:
        lock.release()
