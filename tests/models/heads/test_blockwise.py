"""Blockwise heads: the forward by its equation, what is written is read, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from paceline.core.hidden import Hidden
from paceline.core.target import Need, TargetInfo
from paceline.errors import InvalidInput, ModelError
from paceline.kernels.packing import Storage
from paceline.models.heads import load_head
from paceline.models.heads.blockwise import Weights, read_weights, save_blockwise
from paceline.models.heads.files import open_files
from tests.tiny_heads import TARGET, VOCAB, WIDTH, chain_logits, random_hidden, view_of

TOKENS, INNER = 3, 20


def drawn(*shape: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights_of(**more: Any) -> Weights:
    wide = TOKENS * INNER
    return Weights(
        (drawn(wide, WIDTH, seed=1), drawn(wide, seed=2)),
        (drawn(TOKENS * WIDTH, wide, seed=3), drawn(TOKENS * WIDTH, seed=4)),
        **more,
    )


OUTPUT = drawn(VOCAB, WIDTH, seed=5)
VIEW = view_of(drawn(VOCAB, WIDTH, seed=6), OUTPUT)
HIDDEN = random_hidden(2)


def by_the_equation(weights: Weights, rows: Tensor) -> Tensor:
    """Section 6 of the paper, number by number: the residual is the state that was read."""
    assert HIDDEN.final is not None
    x = HIDDEN.final[-1]
    (w, b), (u, c) = weights.hidden, weights.output
    inner = torch.stack([(w[i] * x).sum() + b[i] for i in range(len(w))]).clamp(min=0)
    y = torch.stack([(u[i] * inner).sum() + c[i] for i in range(len(u))])
    states = [x + y[i * WIDTH : (i + 1) * WIDTH] for i in range(TOKENS)]
    return torch.stack([rows @ state for state in states])


def logits_of(head: Any, levels: int = TOKENS) -> Tensor:
    return chain_logits(head, VIEW, HIDDEN, [5, 7], range(levels - 1))


def saved(weights: Weights, folder: Path) -> Path:
    save_blockwise(weights, folder, base_model="tiny", vocab_size=VOCAB)
    return folder


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return saved(weights_of(), tmp_path / "head")


@pytest.mark.parametrize("levels", [1, 2, TOKENS])
def test_the_forward_is_that_of_the_equation_with_the_target_s_own_rows(
    folder: Path, levels: int
) -> None:
    head = load_head(folder, TARGET)
    assert (head.drafter, head.max_levels) == ("blockwise", TOKENS)
    assert head.needs == {Hidden(final=True), Need.HEAD}
    expected = by_the_equation(weights_of(), OUTPUT)[:levels]
    torch.testing.assert_close(logits_of(head, levels), expected, rtol=0, atol=1e-5)


def test_rows_of_its_own_over_some_tokens(tmp_path: Path) -> None:
    ids, rows = torch.tensor([3, 5, 8, 60]), drawn(4, WIDTH, seed=8)
    head = load_head(saved(weights_of(rows=rows, token_ids=ids), tmp_path / "h"), TARGET)
    assert head.needs == {Hidden(final=True)}
    assert head.token_ids is not None
    assert head.token_ids.tolist() == ids.tolist()
    expected = by_the_equation(weights_of(), rows)
    torch.testing.assert_close(logits_of(head), expected, rtol=0, atol=1e-5)
    cut = load_head(tmp_path / "h", TARGET, token_ids=torch.tensor([60, 3, 4]))
    assert cut.token_ids is not None
    assert cut.token_ids.tolist() == [3, 60]
    torch.testing.assert_close(logits_of(cut), expected[:, [0, 3]], rtol=0, atol=1e-5)


def test_what_is_written_is_read_to_the_bit(tmp_path: Path) -> None:
    weights = weights_of(rows=drawn(4, WIDTH, seed=8), token_ids=torch.tensor([3, 5, 8, 60]))
    found = read_weights(open_files(saved(weights, tmp_path / "h")))
    for pair, expected in ((found.hidden, weights.hidden), (found.output, weights.output)):
        assert all(torch.equal(a, b) for a, b in zip(pair, expected, strict=True))
    assert found.rows is not None
    assert found.token_ids is not None
    assert weights.rows is not None
    assert weights.token_ids is not None
    assert torch.equal(found.rows, weights.rows)
    assert torch.equal(found.token_ids, weights.token_ids)
    assert json.loads((tmp_path / "h" / "config.json").read_text()) == {
        "model_type": "blockwise",
        "base_model_name_or_path": "tiny",
        "block_size": TOKENS + 1,
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "vocab_size": VOCAB,
    }


@pytest.mark.parametrize(("storage", "atol"), [("packed", 1e-5), ("int8", 0.2), ("int4", 2.0)])
def test_coarse_weights_are_close(tmp_path: Path, storage: Storage, atol: float) -> None:
    folder = saved(weights_of(rows=OUTPUT), tmp_path / "h")
    exact, coarse = (load_head(folder, TARGET, storage=one) for one in ("plain", storage))
    torch.testing.assert_close(logits_of(coarse), logits_of(exact), rtol=0, atol=atol)
    if storage.startswith("int"):
        assert coarse.num_bytes < exact.num_bytes


Edit = Callable[[dict[str, Tensor]], object]


@pytest.mark.parametrize(
    ("edit", "words"),
    [
        (lambda t: t.pop("multi_output.output.weight"), "lacks the tensor 'multi_output.output.we"),
        (lambda t: t.pop("multi_output.hidden.bias"), "lacks the tensor 'multi_output.hidden.bia"),
        (
            lambda t: t.update({"multi_output.output.bias": torch.ones(7)}),
            f"'multi_output.output.bias' is 7 and should be {TOKENS * WIDTH} by its weight",
        ),
        (
            lambda t: t.update({"multi_output.output.weight": torch.ones(50, TOKENS * INNER)}),
            "goes from 32 by 60 to 50 numbers, which is no whole number of states of width 32",
        ),
        (
            lambda t: t.update({"multi_output.output.weight": torch.ones(64, TOKENS * INNER)}),
            "block_size of its config.json is 4, and its tensors are those of blocks of 3",
        ),
        (
            lambda t: t.update(token_map=torch.tensor([1, 2])),
            r"lacks the tensor 'lm_head\.weight'",
        ),
        (lambda t: t.update(gate=torch.ones(2)), "1 of its tensors have no place in a blockwise"),
    ],
)
def test_a_damaged_file_is_refused(folder: Path, edit: Edit, words: str) -> None:
    file = folder / "blockwise.safetensors"
    tensors = load_file(file)
    edit(tensors)
    save_file(tensors, file)
    with pytest.raises(ModelError, match=words):
        load_head(folder, TARGET)


def test_a_head_of_another_target_is_refused(folder: Path, tmp_path: Path) -> None:
    other = TargetInfo("other", 100, hidden_size=48)
    for path in (folder, saved(weights_of(rows=OUTPUT), tmp_path / "rows")):
        with pytest.raises(
            InvalidInput,
            match=r"hidden size 32 \(the target has 48\), vocabulary 64 \(the target has 100\)",
        ):
            load_head(path, other)
    beyond = weights_of(rows=drawn(2, WIDTH, seed=8), token_ids=torch.tensor([1, VOCAB]))
    with pytest.raises(InvalidInput, match="proposes token 64, which its target does not have"):
        load_head(saved(beyond, tmp_path / "beyond"), TARGET)


def test_the_target_s_own_rows_are_not_cut(folder: Path) -> None:
    with pytest.raises(InvalidInput, match="the target's own output head, which cannot be cut"):
        load_head(folder, TARGET, token_ids=torch.tensor([1]))


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InvalidInput, match="cannot write"):
        saved(weights_of(), tmp_path / "file")
