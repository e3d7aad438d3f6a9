"""How the threads of a matrix product wait for one another, on a machine that others use too.

A thread that has done its share of a product spins until the others have done theirs. If one of
them has lost its core to another process, the rest burn theirs for nothing: measured on two cores
beside one other busy process, SmolLM2 came at less than 1 token a second rather than 22. Threads
that sleep while they wait cost a third of the speed where the machine is quiet (35 rather than 55
tokens a second), so they do so only where it is not.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

POLICY = "OMP_WAIT_POLICY"
LOAD = Path("/proc/loadavg")

_LOOKS, _PAUSE_S = 9, 0.02


def give_way_where_busy() -> bool:
    """Let waiting threads sleep if other processes want the cores; call it before torch comes.

    OpenMP reads the policy once, when torch loads it. A policy that the user has set stays.

    Returns:
        Whether they will.
    """
    if POLICY in os.environ or "torch" in sys.modules or not is_busy():
        return False
    os.environ[POLICY] = "passive"
    return True


def is_busy() -> bool:
    """Whether others leave less than half of the cores free, in the last minute and now.

    A command that begins where another one ended finds a load that is gone.
    """
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return False  # this system does not tell
    if load <= cores / 2:
        return False
    try:
        return statistics.median(_others_that_run() for _ in range(_LOOKS)) >= cores / 2
    except (OSError, ValueError, IndexError):
        return True  # the load is all that this system tells


def _others_that_run() -> int:
    """Threads that want a core at this moment, but for the one that asks."""
    time.sleep(_PAUSE_S)
    running, _, _ = LOAD.read_text().split()[3].partition("/")
    return int(running) - 1
