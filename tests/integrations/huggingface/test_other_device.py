"""The door on a model that is not on the CPU; the device is simulated (`tests/other_device.py`)."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from paceline.integrations.huggingface import speculate
from tests import tiny_folders
from tests.other_device import DEVICE, OtherDevice, move

PROMPT = [*range(5, 25)]
LIMITS: Any = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": None, "pad_token_id": 0}


@pytest.mark.parametrize("with_draft", [False, True])
def test_the_answer_is_the_model_s_own_and_where_the_model_is(with_draft: bool) -> None:
    expected = tiny_folders.model().generate(torch.tensor([PROMPT]), **LIMITS)
    with OtherDevice():
        model = move(tiny_folders.model())
        options: Any = {"draft_model": move(tiny_folders.model())} if with_draft else {}
        found = model.generate(
            torch.tensor([PROMPT], device=DEVICE),
            custom_generate=speculate(num_draft_tokens=3, **options),
            **LIMITS,
        )
        assert found.device == DEVICE
        assert found.tolist() == expected.tolist()
