"""How the threads of a matrix product wait for each other on a shared machine.

A thread that has done its share of a product spins until the others have done theirs. If one of
them has lost its core to another process, the others waste theirs: on two cores with one other busy
process, SmolLM2 reached less than 1 token per second instead of 22. Threads that sleep while they
wait cost a third of the speed on an idle machine (35 instead of 55 tokens per second), so they
sleep only on a busy one.
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
    """Let waiting threads sleep if other processes use the cores; call it before importing torch.

    OpenMP reads the policy once, when torch loads it. A policy that the user has set is kept.

    Returns:
        Whether they will sleep.
    """
    if POLICY in os.environ or "torch" in sys.modules or not is_busy():
        return False
    os.environ[POLICY] = "passive"
    return True


def is_busy() -> bool:
    """Whether others leave less than half of the cores free, over the last minute and now.

    Right after another command has ended, the load average is still high.
    """
    try:
        load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    except (AttributeError, OSError):
        return False  # this system does not provide it
    if load <= cores / 2:
        return False
    try:
        return statistics.median(_others_that_run() for _ in range(_LOOKS)) >= cores / 2
    except (OSError, ValueError, IndexError):
        return True  # the load average is all that this system provides


def _others_that_run() -> int:
    """The number of runnable threads at this moment, without the calling one."""
    time.sleep(_PAUSE_S)
    running, _, _ = LOAD.read_text().split()[3].partition("/")
    return int(running) - 1
