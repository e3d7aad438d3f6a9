"""MLPSpeculator: the forward by its equations, tied and not, and what is refused."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import TargetInfo
from paceline.core.view import TargetView
from paceline.errors import InvalidInput, ModelError
from paceline.models.heads import load_head
from tests.tiny_heads import Alone

HIDDEN, INNER, VOCAB, STAGES = 16, 24, 40, 3
TARGET = TargetInfo("tiny", VOCAB, gives=frozenset({Hidden.all(2)}), hidden_size=HIDDEN)


def drawn(*shape: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


X = drawn(HIDDEN, seed=1)


def tensors_of(*, tied: bool = False, inner: int = INNER, prefix: str = "") -> dict[str, Tensor]:
    """Random weights in the names of the format; of tied ones each stage has a copy."""
    found: dict[str, Tensor] = {}
    for stage in range(STAGES):
        of = min(stage, 1) if tied else stage
        wide = HIDDEN if stage == 0 else inner
        found[f"{prefix}proj.{stage}.weight"] = drawn(inner, wide, seed=10 + of)
        own = 0 if tied else stage
        found[f"{prefix}emb.{stage}.weight"] = drawn(VOCAB, inner, seed=20 + own)
        found[f"{prefix}head.{stage}.weight"] = drawn(VOCAB, inner, seed=30 + own)
        found[f"{prefix}ln.{stage}.weight"] = 1 + drawn(inner, seed=40 + own)
        found[f"{prefix}ln.{stage}.bias"] = drawn(inner, seed=50 + own)
    return found


def written(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    settings = {
        "model_type": "mlp_speculator",
        "emb_dim": HIDDEN,
        "inner_dim": INNER,
        "vocab_size": VOCAB,
        "n_predict": STAGES,
        "top_k_tokens_per_head": [5, 4, 3],
        "n_candidates": 5,
        **config,
    }
    kept = {key: value for key, value in settings.items() if value is not None}
    (folder / "config.json").write_text(json.dumps(kept))
    return folder


def by_the_equations(
    tensors: dict[str, Tensor], path: tuple[int, ...], *, inner: int = INNER, scale: bool = False
) -> Tensor:
    """Section 2 of the paper; the weights of state and embedding are those of the format."""
    of_state = 0.5 ** (0.5 / STAGES)
    of_token = math.sqrt((1 - of_state**2) * (inner / 2))

    def normed(x: Tensor) -> Tensor:
        return x / torch.sqrt((x * x).mean() + 1e-6)

    s = normed(X) / math.sqrt(2) if scale else X
    for stage, token in enumerate(path):
        s = tensors[f"proj.{stage}.weight"] @ s
        s = s + of_token / of_state * tensors[f"emb.{stage}.weight"][token]
        s = normed(s) * tensors[f"ln.{stage}.weight"] + tensors[f"ln.{stage}.bias"]
        s = 0.5 * s * (1 + torch.erf(s / math.sqrt(2)))
    return tensors[f"head.{len(path) - 1}.weight"] @ s


@pytest.mark.parametrize(
    ("tied", "inner", "scale", "prefix"),
    [
        (False, INNER, False, "speculator."),
        (False, INNER, True, ""),
        (True, INNER, True, "speculator."),
        (False, HIDDEN, False, ""),
    ],
)
def test_the_forward_is_that_of_the_equations(
    tmp_path: Path, tied: bool, inner: int, scale: bool, prefix: str
) -> None:
    folder = written(
        tmp_path / "head",
        tensors_of(tied=tied, inner=inner, prefix=prefix),
        tie_weights=tied,
        scale_input=scale,
        inner_dim=0 if inner == HIDDEN else inner,
    )
    head = load_head(folder, TARGET)
    needs = {Hidden(final=True)}
    assert (head.drafter, head.max_levels, head.needs) == ("mlp", STAGES, needs)
    state = Alone(head.open(TargetView(TARGET), 10))
    with torch.inference_mode():
        state.observe(HiddenStates({}, torch.stack([0 * X, X])), [5, 7])
        first = state.start(3)
        second = state.follow([0, 0], [1, 2])
        third = state.follow([1, 0], [3, 4])
    expected = tensors_of(tied=tied, inner=inner)
    for logits, path in (
        (first[0], (7,)),
        (second[0], (7, 1)),
        (second[1], (7, 2)),
        (third[0], (7, 2, 3)),
        (third[1], (7, 1, 4)),
    ):
        wanted = by_the_equations(expected, path, inner=inner, scale=scale)
        torch.testing.assert_close(logits, wanted, rtol=0, atol=1e-5)


def test_of_tied_weights_the_first_may_stand_for_all(tmp_path: Path) -> None:
    """As a file has them that stores each tensor once."""
    tensors = tensors_of(tied=True)
    once = {
        key: value
        for key, value in tensors.items()
        if int(key.split(".")[1]) <= (1 if key.startswith("proj") else 0)
    }
    head = load_head(written(tmp_path / "head", once, tie_weights=True), TARGET)
    state = Alone(head.open(TargetView(TARGET), 10))
    with torch.inference_mode():
        state.observe(HiddenStates({}, X[None]), [7])
        state.start(3)
        state.follow([0], [1])
        found = state.follow([0], [4])[0]
    torch.testing.assert_close(found, by_the_equations(tensors, (7, 1, 4)), rtol=0, atol=1e-5)


class TestRefused:
    @pytest.mark.parametrize("key", ["n_predict", "vocab_size", "emb_dim"])
    @pytest.mark.parametrize("value", [None, "3", 0, True])
    def test_a_setting_that_is_missing_or_no_number(
        self, tmp_path: Path, key: str, value: Any
    ) -> None:
        folder = written(tmp_path / "h", tensors_of(), **{key: value})
        came = "missing" if value is None else repr(value)
        with pytest.raises(ModelError, match=f"{key} of its config.json must be.*it is {came}"):
            load_head(folder, TARGET)

    def test_another_target(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", tensors_of())
        with pytest.raises(InvalidInput, match=r"vocabulary 40 \(the target has 50\)"):
            load_head(folder, TargetInfo("other", 50, hidden_size=HIDDEN))

    def test_a_missing_key(self, tmp_path: Path) -> None:
        tensors = tensors_of()
        del tensors["emb.1.weight"]
        with pytest.raises(ModelError, match=r"lacks the tensor 'emb\.1\.weight', which its conf"):
            load_head(written(tmp_path / "h", tensors), TARGET)

    def test_sizes_that_the_config_does_not_say(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", tensors_of(), inner_dim=32)
        with pytest.raises(ModelError, match=r"is 24 x 16 and should be 32 x 16 by its config"):
            load_head(folder, TARGET)

    def test_more_stages_than_the_config_says(self, tmp_path: Path) -> None:
        folder = written(tmp_path / "h", tensors_of(), n_predict=2)
        with pytest.raises(ModelError, match="5 of its tensors have no place in a MLPSpeculator"):
            load_head(folder, TARGET)


def test_it_is_cut_to_some_tokens(tmp_path: Path) -> None:
    tensors, kept = tensors_of(), torch.tensor([2, 30])
    head = load_head(written(tmp_path / "h", tensors), TARGET, token_ids=kept)
    assert head.token_ids is not None
    assert head.token_ids.tolist() == [2, 30]
    state = Alone(head.open(TargetView(TARGET), 10))
    with torch.inference_mode():
        state.observe(HiddenStates({}, X[None]), [7])
        state.start(3)
        found = state.follow([0], [39])[0]
    expected = by_the_equations(tensors, (7, 39))[kept]
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
