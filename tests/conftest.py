"""Settings for every test: offline, reproducible, and light on the machine."""

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


@pytest.fixture(autouse=True)
def _warnings_begin_anew():
    """What a process warns of once, each test sees."""
    if module := sys.modules.get("paceline.generate.tokenizers"):
        module._warn_once.cache_clear()
