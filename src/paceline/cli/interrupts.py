"""Clean handling of Ctrl-C and `kill` at any time, including while libraries are imported.

A KeyboardInterrupt during an import ends badly: C++ code that runs Python during module
initialisation calls `terminate`, and libraries mistake it for a missing module. So an interrupt
during an import is raised after the import. Nothing heavy is imported here, so that the handlers
can be installed first.
"""

from __future__ import annotations

import _thread
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

_LOOK_AGAIN_S = 0.05
_IMPORT_SYSTEM = "<frozen importlib._bootstrap>"


class Terminated(KeyboardInterrupt):
    """The process was asked to terminate (SIGTERM), rather than interrupted."""


class _State:
    """The pending interruption.

    Args:
        kind: the exception to raise when an import has ended.
        seen: whether anything was raised since `forget`.
    """

    kind: type[KeyboardInterrupt] = KeyboardInterrupt
    seen: bool = False


def install() -> None:
    """Install the handlers for Ctrl-C and SIGTERM in this process."""
    signal.signal(signal.SIGINT, _at_interrupt)
    signal.signal(signal.SIGTERM, _at_termination)
    sys.unraisablehook = _at_unraisable


def leave_to_the_system() -> None:
    """Let a later Ctrl-C end the process at once, since everything is written."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def asked_to_stop() -> Iterator[Callable[[], bool]]:
    """Within, a first Ctrl-C or SIGTERM only asks to stop, so that a step is not left half done.

    Yields whether it was asked. A second Ctrl-C raises, as outside. Outside of the main thread,
    which alone has signals, nothing changes.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked.is_set
        return

    def ask(number: int, frame: FrameType | None) -> None:
        asked.set()
        signal.signal(number, before[number])  # type: ignore[index]

    before = {number: signal.signal(number, ask) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield asked.is_set
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def was_interrupted() -> bool:
    """Whether Ctrl-C or SIGTERM arrived: an error that follows is most likely caused by it."""
    return _State.seen


def forget() -> None:
    """Mark the interruption as handled."""
    _State.seen = False


def _at_interrupt(_: int, frame: FrameType | None) -> None:
    _State.seen = True
    if _is_importing(frame):
        _interrupt_again()
        return
    raise _State.kind


def _at_termination(number: int, frame: FrameType | None) -> None:
    """Once only: while measurements are being written, a second signal has no effect."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    _State.kind = Terminated
    _at_interrupt(number, frame)


def _at_unraisable(report: Any) -> None:
    """An interruption in a destructor or a callback, where it would be lost."""
    if isinstance(report.exc_value, KeyboardInterrupt):
        _interrupt_again()
        return
    sys.__unraisablehook__(report)


def _interrupt_again() -> None:
    again = threading.Timer(_LOOK_AGAIN_S, _thread.interrupt_main)
    again.daemon = True
    again.start()


def _is_importing(frame: FrameType | None) -> bool:
    while frame is not None:
        if frame.f_code.co_filename == _IMPORT_SYSTEM:
            return True
        frame = frame.f_back
    return False
