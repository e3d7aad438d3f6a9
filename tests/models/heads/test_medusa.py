"""Medusa heads: the forward by its equations, every naming of the files, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need, TargetInfo
from paceline.core.view import TargetView
from paceline.errors import InvalidInput, ModelError
from paceline.kernels.packing import Storage
from paceline.models.heads import load_head
from paceline.models.heads.medusa import MedusaHead, Weights, save_medusa
from tests.tiny_heads import Alone

HIDDEN, VOCAB, HEADS = 32, 64, 3
TARGET = TargetInfo("tiny", VOCAB, gives=frozenset({Hidden.all(2)}), hidden_size=HIDDEN)


def drawn(*shape: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weights_of(*, blocks: int = 1, bias: bool = True, rows: int = VOCAB, **more: Any) -> Weights:
    made = [
        [
            (
                drawn(HIDDEN, HIDDEN, seed=10 * head + number),
                drawn(HIDDEN, seed=99 + 10 * head + number) if bias else None,
            )
            for number in range(blocks)
        ]
        for head in range(HEADS)
    ]
    return Weights(made, [drawn(rows, HIDDEN, seed=500 + h) for h in range(HEADS)], **more)


def by_the_equations(weights: Weights, x: Tensor) -> Tensor:
    """Section 3.1 of the paper, with x the final state: h + SiLU(W h + b) per block, then O h."""
    rows = []
    for number, blocks in enumerate(weights.blocks):
        h = x
        for weight, bias in blocks:
            inner = weight @ h + (0 if bias is None else bias)
            h = h + inner * torch.sigmoid(inner)
        rows.append(weights.outputs[min(number, len(weights.outputs) - 1)] @ h)
    return torch.stack(rows)


def logits_of(head: Any, x: Tensor, *, target_head: Any = None) -> Tensor:
    """All levels, through the contract."""
    state = Alone(head.open(TargetView(TARGET, head=target_head), 10))
    with torch.inference_mode():
        state.observe(HiddenStates({}, torch.stack([0 * x, x])), [5, 7])
        rows = [state.start(head.max_levels)]
        rows += [state.follow([0, 0], [1, 2])[1:] for _ in range(head.max_levels - 1)]
    return torch.cat(rows)


X = drawn(HIDDEN, seed=1)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("blocks", [1, 2])
def test_the_forward_is_that_of_the_equations(tmp_path: Path, blocks: int, bias: bool) -> None:
    weights = weights_of(blocks=blocks, bias=bias)
    save_medusa(weights, tmp_path / "head", base_model="tiny", vocab_size=VOCAB)
    head = load_head(tmp_path / "head", TARGET)
    assert (head.drafter, head.max_levels, head.needs) == ("medusa", HEADS, {Hidden(final=True)})
    torch.testing.assert_close(logits_of(head, X), by_the_equations(weights, X), rtol=0, atol=1e-5)


def tensors_of(folder: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(folder / "medusa_lm_head.safetensors")


def as_repository(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return tensors


def as_whole_model(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"medusa_head.{key}": value for key, value in tensors.items()}


def as_vllm(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    renamed = {}
    for key, value in tensors.items():
        head, place, *rest = key.split(".")
        stem = f"blocks.{head}.layers.{place}" if "linear" in key else f"lm_heads.{head}"
        renamed[f"{stem}.{rest[-1]}"] = value
    return renamed


def as_vllm_within(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"medusa_heads.{key}": value for key, value in as_vllm(tensors).items()}


@pytest.mark.parametrize("kind", ["safetensors", "pt", "file"])
@pytest.mark.parametrize("rename", [as_repository, as_whole_model, as_vllm, as_vllm_within])
def test_every_naming_is_read(
    tmp_path: Path, rename: Callable[[dict[str, Tensor]], dict[str, Tensor]], kind: str
) -> None:
    """The number of heads is counted: the setting of published files is wrong."""
    weights = weights_of()
    save_medusa(weights, tmp_path / "a", base_model="tiny", vocab_size=VOCAB)
    renamed = rename(tensors_of(tmp_path / "a"))
    folder = tmp_path / "b"
    folder.mkdir()
    config = {"medusa_num_heads": 2, "medusa_num_layers": 1, "base_model_name_or_path": "tiny"}
    (folder / "config.json").write_text(json.dumps(config))
    source = folder
    if kind == "pt":
        torch.save(renamed, folder / "medusa_lm_head.pt")
    else:
        save_file(renamed, folder / "medusa_lm_head.safetensors")
        source = folder if kind == "safetensors" else folder / "medusa_lm_head.safetensors"
    head = load_head(source, TARGET, allow_pickle=kind == "pt")
    assert head.max_levels == HEADS
    torch.testing.assert_close(logits_of(head, X), by_the_equations(weights, X), rtol=0, atol=1e-5)


def test_an_output_layer_that_all_share_over_some_tokens(tmp_path: Path) -> None:
    """As vLLM stores it; one product serves all levels."""
    whole = weights_of()
    ids = torch.tensor([3, 5, 8, 60])
    cut = Weights(whole.blocks, [whole.outputs[0][ids]], ids)
    save_medusa(cut, tmp_path / "head", base_model="tiny", vocab_size=VOCAB)
    config = json.loads((tmp_path / "head" / "config.json").read_text())
    assert config["original_lm_head"]
    assert (config["vocab_size"], config["truncated_vocab_size"]) == (VOCAB, 4)
    head = load_head(tmp_path / "head", TARGET)
    assert head.token_ids is not None
    assert head.token_ids.tolist() == ids.tolist()
    expected = by_the_equations(Weights(whole.blocks, whole.outputs[:1]), X)[:, ids]
    torch.testing.assert_close(logits_of(head, X), expected, rtol=0, atol=1e-5)


def test_heads_without_an_output_layer_use_the_target_s(tmp_path: Path) -> None:
    whole = weights_of()
    save_medusa(whole._replace(outputs=[]), tmp_path / "h", base_model="tiny", vocab_size=VOCAB)
    head = load_head(tmp_path / "h", TARGET)
    assert head.needs == {Hidden(final=True), Need.HEAD}
    output = whole.outputs[0]
    found = logits_of(head, X, target_head=lambda states: states @ output.T)
    expected = by_the_equations(Weights(whole.blocks, [output]), X)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("storage", "atol"), [("packed", 1e-5), ("int8", 0.1), ("int4", 1.0)])
def test_coarse_weights_are_close(tmp_path: Path, storage: Storage, atol: float) -> None:
    weights = weights_of()
    save_medusa(weights, tmp_path / "head", base_model="tiny", vocab_size=VOCAB)
    head = load_head(tmp_path / "head", TARGET, storage=storage)
    exact = load_head(tmp_path / "head", TARGET, storage="plain")
    torch.testing.assert_close(logits_of(head, X), logits_of(exact, X), rtol=0, atol=atol)
    if storage.startswith("int"):
        assert head.num_bytes < exact.num_bytes


def test_float16_becomes_what_the_machine_multiplies(tmp_path: Path) -> None:
    half = weights_of()
    half = Weights(
        [[(w.half(), b.half()) for w, b in head if b is not None] for head in half.blocks],
        [output.half() for output in half.outputs],
    )
    save_medusa(half, tmp_path / "head", base_model="tiny", vocab_size=VOCAB)
    head = load_head(tmp_path / "head", TARGET)
    assert isinstance(head, MedusaHead)
    assert head.dtype in (torch.float32, torch.bfloat16)
    wide = load_head(tmp_path / "head", TARGET, dtype=torch.float32)
    torch.testing.assert_close(logits_of(head, X).float(), logits_of(wide, X), rtol=0.1, atol=0.1)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_medusa(weights_of(), tmp_path / "head", base_model="tiny", vocab_size=VOCAB)
    return tmp_path / "head"


def change(folder: Path, edit: Callable[[dict[str, Tensor]], object]) -> Path:
    tensors = tensors_of(folder)
    edit(tensors)
    save_file(tensors, folder / "medusa_lm_head.safetensors")
    return folder


class TestRefused:
    """One clear line each."""

    def test_a_truncated_file(self, folder: Path) -> None:
        file = folder / "medusa_lm_head.safetensors"
        file.write_bytes(file.read_bytes()[:-100])
        with pytest.raises(ModelError, match=r"medusa_lm_head\.safetensors is damaged or trunca"):
            load_head(folder, TARGET)

    def test_a_pickle_without_the_switch(self, folder: Path, tmp_path: Path) -> None:
        pickled = tmp_path / "medusa_lm_head.pt"
        torch.save(tensors_of(folder), pickled)
        with pytest.raises(InvalidInput, match=r"is a pickle.*allow_pickle=True \(--allow-pickle"):
            load_head(pickled, TARGET)
        assert load_head(pickled, TARGET, allow_pickle=True).max_levels == HEADS

    @pytest.mark.parametrize("content", [b"", b"no pickle", b"PK\x03\x04 cut short"])
    def test_a_pickle_that_is_damaged(self, tmp_path: Path, content: bytes) -> None:
        (tmp_path / "medusa_lm_head.pt").write_bytes(content)
        with pytest.raises(ModelError, match="cannot be read as a dictionary of tensors"):
            load_head(tmp_path, TARGET, allow_pickle=True)

    def test_a_pickle_that_runs_code(self, tmp_path: Path) -> None:
        torch.save({"0.0.linear.weight": Path("x")}, tmp_path / "medusa_lm_head.pt")
        with pytest.raises(ModelError, match="holds more than tensors"):
            load_head(tmp_path, TARGET, allow_pickle=True)

    def test_a_pickle_of_something_else(self, tmp_path: Path) -> None:
        torch.save([torch.ones(2)], tmp_path / "medusa_lm_head.pt")
        with pytest.raises(ModelError, match="holds something else than named tensors"):
            load_head(tmp_path, TARGET, allow_pickle=True)

    def test_a_head_of_another_width(self, folder: Path) -> None:
        other = TargetInfo("other", VOCAB, hidden_size=48)
        with pytest.raises(
            InvalidInput, match=r"for another target than other: hidden size 32 \(the target has 48"
        ):
            load_head(folder, other)

    def test_a_head_of_another_vocabulary(self, folder: Path) -> None:
        other = TargetInfo("other", 100, hidden_size=HIDDEN)
        with pytest.raises(InvalidInput, match=r"vocabulary 64 \(the target has 100\)"):
            load_head(folder, other)

    def test_a_cut_vocabulary_of_another_target(self, tmp_path: Path) -> None:
        whole = weights_of(rows=2)
        cut = Weights(whole.blocks, whole.outputs, torch.tensor([1, VOCAB]))
        save_medusa(cut, tmp_path / "h", base_model="tiny", vocab_size=VOCAB + 1)
        with pytest.raises(InvalidInput, match="proposes token 64, which its target does not have"):
            load_head(tmp_path / "h", TARGET)

    @pytest.mark.parametrize(
        ("key", "words"),
        [
            ("1.0.linear.weight", "lacks block 0 of head 1, of 3 heads with 1 blocks"),
            ("1.1.weight", "lacks the output layer of head 1 of 3"),
            ("2.1.weight", "lacks the output layer of head 2 of 3"),
        ],
    )
    def test_a_missing_key(self, folder: Path, key: str, words: str) -> None:
        with pytest.raises(ModelError, match=words):
            load_head(change(folder, lambda tensors: tensors.pop(key)), TARGET)

    def test_a_tensor_of_another_shape(self, folder: Path) -> None:
        changed = change(folder, lambda t: t.update({"1.0.linear.bias": torch.ones(7)}))
        with pytest.raises(ModelError, match=r"'1\.0\.linear\.bias' is 7 and should be 32 by its"):
            load_head(changed, TARGET)

    def test_output_layers_of_different_lengths(self, folder: Path) -> None:
        changed = change(folder, lambda t: t.update({"1.1.weight": torch.ones(7, HIDDEN)}))
        with pytest.raises(ModelError, match="head 1 has 7 rows and should have 64"):
            load_head(changed, TARGET)

    def test_a_tensor_without_a_place(self, folder: Path) -> None:
        changed = change(folder, lambda t: t.update({"gate.weight": torch.ones(2)}))
        with pytest.raises(ModelError, match=r"1 of its tensors have no place in a Medusa head"):
            load_head(changed, TARGET)

    def test_another_format(self, tmp_path: Path) -> None:
        save_file({"wte.weight": torch.ones(2, 2)}, tmp_path / "model.safetensors")
        with pytest.raises(ModelError, match=r"is of no format of heads that Paceline reads \(Med"):
            load_head(tmp_path, TARGET)

    def test_no_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text("{}")
        with pytest.raises(InvalidInput, match="holds no weights of a head"):
            load_head(tmp_path, TARGET)

    def test_a_config_that_is_no_json(self, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        with pytest.raises(ModelError, match=r"config\.json"):
            load_head(folder, TARGET)

    @pytest.mark.parametrize("source", ["heads/none/here", "./none", "none", ""])
    def test_no_such_head(self, source: str) -> None:
        with pytest.raises(InvalidInput, match="no such draft head"):
            load_head(source, TARGET)

    def test_a_folder_that_cannot_be_written(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("")
        with pytest.raises(InvalidInput, match="cannot write"):
            save_medusa(weights_of(), tmp_path / "file", base_model="tiny", vocab_size=VOCAB)


class TestCut:
    """`token_ids`: only some outputs are kept."""

    KEPT = torch.tensor([60, 3, 8, 3])

    def test_the_rows_of_others_are_left_out(self, folder: Path) -> None:
        head, whole = load_head(folder, TARGET, token_ids=self.KEPT), load_head(folder, TARGET)
        assert head.token_ids is not None
        assert head.token_ids.tolist() == [3, 8, 60]
        torch.testing.assert_close(
            logits_of(head, X), logits_of(whole, X)[:, head.token_ids], rtol=0, atol=1e-5
        )
        assert head.num_bytes < whole.num_bytes

    def test_a_head_that_is_cut_is_cut_further(self, tmp_path: Path) -> None:
        whole = weights_of()
        ids = torch.tensor([3, 5, 60])
        cut = Weights(whole.blocks, [output[ids] for output in whole.outputs], ids)
        save_medusa(cut, tmp_path / "h", base_model="tiny", vocab_size=VOCAB)
        head = load_head(tmp_path / "h", TARGET, token_ids=self.KEPT)
        assert head.token_ids is not None
        assert head.token_ids.tolist() == [3, 60]
        expected = by_the_equations(whole, X)[:, [3, 60]]
        torch.testing.assert_close(logits_of(head, X), expected, rtol=0, atol=1e-5)
        with pytest.raises(InvalidInput, match="none of which is among the 2 that it is to be cut"):
            load_head(tmp_path / "h", TARGET, token_ids=torch.tensor([1, 2]))

    def test_the_target_s_own_output_head_stays_whole(self, tmp_path: Path) -> None:
        save_medusa(
            weights_of()._replace(outputs=[]), tmp_path / "h", base_model="t", vocab_size=VOCAB
        )
        with pytest.raises(InvalidInput, match="the target's own output head, which cannot be cut"):
            load_head(tmp_path / "h", TARGET, token_ids=self.KEPT)
