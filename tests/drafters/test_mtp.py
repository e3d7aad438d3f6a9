"""MTP modules on tiny models: greedy equality, and the contract."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from paceline.core.sampling import SamplingParams
from paceline.drafters.eagle import EagleDrafter
from paceline.drafters.mtp import MtpDrafter
from paceline.errors import InvalidInput
from paceline.models.heads import load_head
from paceline.testing import check_drafter
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.drafters.test_eagle import COUNT, PROMPT, model, target
from tests.greedy import generated
from tests.models.heads.test_mtp import module_weights, write
from tests.rigged import run
from tests.tiny_models import build, lean_target


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A random module for the tiny model, whose embedding and output head it shares."""
    folder: Path = write(tmp_path_factory.mktemp("mtp"), "mimo", module_weights())
    return load_head(folder, target().info, dtype=torch.float32)


@pytest.mark.parametrize("settings", [{"shape": "chain"}, {"max_nodes": 6, "top_k": 3}])
@pytest.mark.parametrize("decoder", ["lean", "transformers"])
def test_greedy_answers_are_those_of_transformers(
    settings: dict[str, Any], decoder: str, head: Any
) -> None:
    drafter = MtpDrafter(head, **settings)
    rule = TokenVerifier() if drafter.is_chain else TreeVerifier()
    found = run(target(decoder), PROMPT, drafter, k=3, max_tokens=COUNT, verifier=rule)
    assert found.tokens == generated(model(), PROMPT, COUNT)


@pytest.mark.slow
def test_its_contract(head: Any) -> None:
    check_drafter(
        MtpDrafter(head, shape="chain"),
        target=lean_target(build("llama", num_hidden_layers=4, max_position_embeddings=20)),
        params=SamplingParams(temperature=1.0, top_k=2),
        text_alone=True,
    )


def test_a_head_of_another_kind_is_refused(head: Any) -> None:
    with pytest.raises(InvalidInput, match=r"'eagle'.*'mtp'"):
        EagleDrafter(head)
