"""Settings for every test: offline, reproducible, and light on the machine."""

import itertools
import os
import sys

# Before anything imports huggingface_hub, which reads it once: no test may reach for a hub.
os.environ["HF_HUB_OFFLINE"] = "1"

import pytest
import torch
from hypothesis import settings

# The same examples in every run, and no deadline: a busy machine must not fail a test.
# `--hypothesis-profile=explore` looks further, with fresh examples.
settings.register_profile("paceline", deadline=None, derandomize=True)
settings.register_profile("explore", deadline=None, max_examples=2000, print_blob=True)
settings.load_profile("paceline")

# Tiny models gain nothing from more threads and lose much to their start-up.
torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def _measurements_stay_out_of_the_users_cache(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A cache of the run's own, which its processes share; real models are taken from the user's.

    Tests run side by side, so what they time is no truth about the machine.
    """
    if any(item.get_closest_marker("model") for item in request.session.items):
        return
    base = tmp_path_factory.getbasetemp()
    whole_run = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    os.environ["PACELINE_CACHE"] = str(whole_run / "cache")


@pytest.fixture(autouse=True)
def _warnings_begin_anew():
    """What a process warns of once, each test sees."""
    if module := sys.modules.get("paceline.generate.tokenizers"):
        module._warn_once.cache_clear()


@pytest.fixture(autouse=True)
def _the_clock_of_the_engine_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each look at the engine's clock is a millisecond after the last, on any machine.

    `auto` decides by timings. With these a draft seems to take as long as a pass, so that no test
    can count on a draft that only the clock of a quiet machine would allow; tests that need drafts
    fix their length or give a table of costs, and tests of timing script a clock of their own.
    """
    ticks = itertools.count()
    for module in ("gather", "loop", "sequence"):
        monkeypatch.setattr(f"paceline.engine.{module}.perf_counter", lambda: next(ticks) / 1000)
