"""The scripted target. `check_target` holds its contract in tests/testing/test_targets.py."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from paceline.core.drafts import Auxiliary, Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.errors import ContextOverflow, ContractViolation, InvalidInput
from paceline.testing.table import TableSlot, TableTarget

ONE = torch.tensor([0.75, 0.25])
ROWS = torch.tensor([[0.5, 0.25, 0.25], [0.125, 0.75, 0.125], [0.0, 1.0, 0.0]])
TREE = Draft((1, 2, 0), parents=(-1, -1, 0))


def told(tokens: tuple[int, ...]) -> Tensor:
    """Says all that it was told: the share of token t is how often it came, and one more."""
    return (torch.bincount(torch.tensor(tokens), minlength=3) + 1.0) / (len(tokens) + 3)


def laws(target: TableTarget, text: Sequence[int], draft: Draft) -> Tensor:
    slot = target.open(32)
    prefill(target, slot, text[:-1])
    (scores,) = target.score([Work(slot, [text[-1]], draft)])
    assert scores.logits.dtype == torch.float64
    return scores.logits.exp()


def test_one_law_for_every_place() -> None:
    found = laws(TableTarget(ONE), (0, 1), Draft((1, 1)))
    torch.testing.assert_close(found, ONE.double().expand(3, 2))


def test_a_row_follows_its_token() -> None:
    found = laws(TableTarget(ROWS), (0, 2), TREE)
    torch.testing.assert_close(found, ROWS.double()[[2, 1, 2, 0]])


def test_a_function_sees_the_text_and_the_path_of_each_node() -> None:
    found = laws(TableTarget(told, vocab_size=3), (0, 0, 2), TREE)
    texts = [(0, 0, 2), (0, 0, 2, 1), (0, 0, 2, 2), (0, 0, 2, 1, 0)]
    torch.testing.assert_close(found, torch.stack([told(text) for text in texts]).double())


def test_a_slot_holds_what_was_committed_and_forgets_what_was_rolled_back() -> None:
    target = TableTarget(told, vocab_size=3)
    slot = target.open(32)
    prefill(target, slot, (0, 0))
    target.score([Work(slot, [2], TREE)])
    target.commit(slot, (0, 2))
    assert slot.tokens == [0, 0, 2, 1, 0]
    assert target.length(slot) == 5
    target.rollback(slot, 3)
    assert slot.tokens == [0, 0, 2]
    (scores,) = target.score([Work(slot, [1], Draft())])
    torch.testing.assert_close(scores.logits[0].exp(), told((0, 0, 2, 1)).double())
    target.close(slot)
    assert target.length(slot) == 0


def test_slots_share_a_pass_and_nothing_else() -> None:
    target = TableTarget(told, vocab_size=3)
    one, other = target.open(8), target.open(8)
    prefill(target, one, (0,))
    prefill(target, other, (2, 2))
    scores = target.score([Work(one, [0], Draft()), Work(other, [1], Draft((1,)))])
    torch.testing.assert_close(scores[0].logits[0].exp(), told((0, 0)).double())
    torch.testing.assert_close(scores[1].logits[1].exp(), told((2, 2, 1, 1)).double())


def test_a_function_needs_the_size_of_its_vocabulary() -> None:
    with pytest.raises(InvalidInput, match="needs vocab_size"):
        TableTarget(told)


def test_the_context_limit_is_that_of_a_slot() -> None:
    target = TableTarget(ONE, max_length=5)
    assert target.info.max_length == 5
    target.open(5)
    with pytest.raises(ContextOverflow, match="the table takes 5 tokens; 6 were requested"):
        target.open(6)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda target, slot: target.commit(slot, ()), "commit without a score"),
        (lambda target, slot: target.rollback(slot, 3), "has 2 tokens, 3 requested"),
        (lambda target, slot: target.rollback(slot, -1), "has 2 tokens, -1 requested"),
    ],
)
def test_calls_out_of_order_are_refused(
    call: Callable[[TableTarget, TableSlot], Any], message: str
) -> None:
    target = TableTarget(ONE)
    slot = target.open(8)
    prefill(target, slot, (0, 1))
    with pytest.raises(ContractViolation, match=message):
        call(target, slot)


@pytest.mark.parametrize("path", [(2,), (1, 2), (0, 1), (3,)])
def test_a_commit_takes_a_path_from_the_root(path: tuple[int, ...]) -> None:
    target = TableTarget(ROWS)
    slot = target.open(8)
    target.score([Work(slot, [0], TREE)])
    with pytest.raises(ContractViolation, match="a path from the root"):
        target.commit(slot, path)


def test_an_auxiliary_row_follows_what_it_sees() -> None:
    target = TableTarget(lambda tokens: torch.eye(9)[sum(tokens) % 9], vocab_size=9)
    slot = target.open(9)
    visible = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 1]], dtype=torch.bool)
    draft = Draft((3,), aux=Auxiliary((4, 1), (2, 3), visible))
    logits = target.score([Work(slot, [2], draft)])[0].logits
    assert logits.argmax(dim=-1).tolist() == [2, 5, (2 + 3 + 4) % 9, 2 + 4 + 1]
