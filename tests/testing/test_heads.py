"""The scripted head says what its table says after the text and the path."""

from __future__ import annotations

import pytest
import torch

from paceline.core.sampling import SamplingParams
from paceline.drafters.head import AnyHeadDrafter
from paceline.testing import check_drafter
from paceline.testing.heads import TableHead, last_token
from paceline.testing.table import TableTarget
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from tests.rigged import run

LAWS = torch.tensor([[0.3, 0.4, 0.3], [0.1, 0.6, 0.3], [0.7, 0.1, 0.2]], dtype=torch.float64)


@pytest.mark.parametrize("shape", ["chain", "dynamic"])
def test_it_keeps_the_contract(shape: str) -> None:
    table = TableTarget(LAWS, max_length=20, states=last_token)
    head = TableHead(TableTarget(LAWS.flip(0)), "scripted")
    check_drafter(
        AnyHeadDrafter(head, shape=shape, max_nodes=3, top_k=2),  # type: ignore[arg-type]
        target=table,
        params=SamplingParams(temperature=1.0),
        verifier=TokenVerifier() if shape == "chain" else TreeVerifier(),
        text_alone=True,
    )


def test_the_table_of_the_target_is_always_right() -> None:
    table = TableTarget(LAWS, states=last_token)
    drafter = AnyHeadDrafter(TableHead(table, "scripted"), shape="chain")
    found = run(table, (0, 2), drafter, k=3, max_tokens=12)
    assert [r.num_accepted_tokens for r in found.rounds] == [3, 3, 3]
    assert found.tokens == run(table, (0, 2), max_tokens=12).tokens
