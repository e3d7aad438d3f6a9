"""ReDrafter heads: the network by its equations, the beams by brute force, and what is refused."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from paceline.core.drafts import Budget
from paceline.core.hidden import Hidden
from paceline.core.passes import drive
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Need, TargetInfo
from paceline.drafters.redrafter import RedrafterDrafter
from paceline.errors import InvalidInput, ModelError
from paceline.models.heads import load_head
from paceline.sampling.noise import SeededNoise
from paceline.sampling.warp import SamplingWarp
from tests.tiny_heads import TARGET, VOCAB, WIDTH, Alone, random_hidden, view_of

EMBEDDING = torch.randn(VOCAB, WIDTH, generator=torch.Generator().manual_seed(1))
VIEW = view_of(EMBEDDING, EMBEDDING)
HIDDEN = random_hidden(2)
Path_ = tuple[int, ...]


def drawn(*shape: int, seed: int) -> Tensor:
    return 0.3 * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def tensors_of(
    *, exit_dim: int = 2 * WIDTH, blocks: int = 2, rnn: bool = True
) -> dict[str, Tensor]:
    found = {f"lm_head.{blocks}.weight": drawn(VOCAB, exit_dim, seed=9)}
    for number in range(blocks):
        found[f"lm_head.{number}.linear.weight"] = drawn(exit_dim, exit_dim, seed=20 + number)
        found[f"lm_head.{number}.linear.bias"] = drawn(exit_dim, seed=30 + number)
    if exit_dim != 2 * WIDTH:
        found["input_proj.weight"] = drawn(exit_dim, 2 * WIDTH, seed=2)
        found["input_proj.bias"] = drawn(exit_dim, seed=3)
    if rnn:
        found["rnn_w.weight"] = drawn(WIDTH, WIDTH, seed=4)
        found["rnn_u.weight"] = drawn(WIDTH, WIDTH, seed=5)
        found["rnn_u.bias"] = drawn(WIDTH, seed=6)
    return found


def written(folder: Path, tensors: dict[str, Tensor], **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    save_file(tensors, folder / "model.safetensors")
    settings = {
        "model_type": "recurrent_drafting_drafter",
        "hidden_size": WIDTH,
        "vocab_size": VOCAB,
        "exit_dim": next(t.shape[1] for k, t in tensors.items() if k.endswith("head.2.weight")),
        "num_draft_layers": 2,
        "rnn": "rnn_u.weight" in tensors,
        **config,
    }
    (folder / "config.json").write_text(json.dumps(settings))
    return folder


def silu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


def by_the_equations(tensors: dict[str, Tensor], path: Path_) -> Tensor:
    """The logits after a path, whose first token is the last committed one: section 3.1."""
    assert HIDDEN.final is not None
    c, s = HIDDEN.final[-1], torch.zeros(WIDTH)
    for token in path:
        e = EMBEDDING[token]
        if "rnn_u.weight" in tensors:
            old = tensors["rnn_u.weight"] @ s + tensors["rnn_u.bias"]
            s = silu(tensors["rnn_w.weight"] @ e + old)
        else:
            s = s + e
    x = torch.cat([c, s])
    if "input_proj.weight" in tensors:
        x = tensors["input_proj.weight"] @ x + tensors["input_proj.bias"]
    number = 0
    while f"lm_head.{number}.linear.weight" in tensors:
        stem = f"lm_head.{number}.linear"
        x = x + silu(tensors[f"{stem}.weight"] @ x + tensors[f"{stem}.bias"])
        number += 1
    return tensors[f"lm_head.{number}.weight"] @ x


KINDS: dict[str, dict[str, Any]] = {
    "published": {},
    "projected": {"exit_dim": 40},
    "without a recurrent layer": {"rnn": False},
    "projected, without": {"exit_dim": 40, "rnn": False},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_config", [True, False])
def test_the_network_is_that_of_the_equations(tmp_path: Path, kind: str, has_config: bool) -> None:
    """On a tree: siblings and cousins each carry a state of their own."""
    tensors = tensors_of(**KINDS[kind])
    folder = written(tmp_path / "head", tensors)
    if not has_config:
        if "rnn_u.weight" not in tensors:
            return  # nothing then says what it is
        (folder / "config.json").unlink()
    head = load_head(folder, TARGET)
    assert (head.drafter, head.max_levels) == ("redrafter", None)
    assert head.needs == {Hidden(final=True), Need.EMBEDDING}
    state = Alone(head.open(VIEW, 10))
    with torch.inference_mode():
        state.observe(HIDDEN, [5, 7])
        first, second = state.start(3), state.follow([0, 0], [1, 2])
        third = state.follow([1, 0, 1], [3, 4, 5])
        again = state.start(3)
    found = torch.cat([first, second, third])
    paths: list[Path_] = [(7,), (7, 1), (7, 2), (7, 2, 3), (7, 1, 4), (7, 2, 5)]
    expected = torch.stack([by_the_equations(tensors, path) for path in paths])
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(again, first), "a new draft starts from a state of zeros"


def beams(tensors: dict[str, Tensor], width: int, length: int, temperature: float) -> list[Path_]:
    """Beam search by its definition, with every continuation of every beam in one list."""
    found: list[tuple[float, Path_]] = [(0.0, ())]
    for _ in range(length):
        grown = []
        for score, path in found:
            logs = (by_the_equations(tensors, (7, *path)) / temperature).log_softmax(dim=-1)
            grown += [(score + float(logs[t]), (*path, t)) for t in range(VOCAB)]
        found = sorted(grown, reverse=True)[:width]
    return [path for _, path in found]


@pytest.mark.parametrize("temperature", [0.0, 1.0, 0.4])
@pytest.mark.parametrize(("width", "length"), [(1, 3), (4, 1), (3, 4), (6, 3)])
def test_the_draft_is_the_tree_of_the_beams(
    tmp_path: Path, width: int, length: int, temperature: float
) -> None:
    tensors = tensors_of()
    head = load_head(written(tmp_path / "head", tensors), TARGET)
    drafter = RedrafterDrafter(head, width=width, max_nodes=60)
    session = drafter.open(VIEW, 40)
    session.observe(Committed((1, 5, 7), hidden=HIDDEN.only(Hidden(final=True))))
    warp = SamplingWarp(SamplingParams(temperature=temperature))
    draft = drive(session.propose(Budget(length), warp, SeededNoise(0)))
    assert draft.probs is None, "nothing is drawn"
    found = [tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft))]
    expected = beams(tensors, width, length, temperature or 1.0)
    prefixes = {path[:end] for path in expected for end in range(1, length + 1)}
    assert set(found) == prefixes
    assert len(found) == len(prefixes), "what beams share stands there once"
    ends = [node for node in range(len(draft)) if not draft.children(node)]
    assert {found[node] for node in ends} == {*expected}


def test_the_most_probable_beams_that_fit_are_submitted(tmp_path: Path) -> None:
    tensors = tensors_of()
    head = load_head(written(tmp_path / "head", tensors), TARGET)
    session = RedrafterDrafter(head, width=4).open(VIEW, 40)
    session.observe(Committed((1, 5, 7), hidden=HIDDEN.only(Hidden(final=True))))
    warp, best = SamplingWarp(SamplingParams()), beams(tensors, 4, 3, 1.0)
    for most in range(1, 13):
        draft = drive(session.propose(Budget(3, max_nodes=most), warp, SeededNoise(0)))
        assert len(draft) <= most
        found = {tuple(draft.tokens[i] for i in draft.path(node)) for node in range(len(draft))}
        expected: set[Path_] = set()
        for path in best:
            cut = {path[:end] for end in range(1, min(3, most) + 1)}
            if len(expected | cut) <= most:
                expected |= cut
        assert found == expected


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"lm_head.2.weight": None}, "has 0 output layers"),
        ({"lm_head.3.weight": torch.ones(VOCAB, 2 * WIDTH)}, "has 2 output layers"),
        ({"lm_head.1.linear.bias": None}, r"lacks the tensor 'lm_head\.1\.linear\.bias'"),
        ({"rnn_w.weight": None}, r"lacks the tensor 'rnn_w\.weight'"),
        ({"rnn_u.bias": torch.ones(3)}, r"'rnn_u\.bias' is 3 and should be 32"),
        ({"gate": torch.ones(3)}, "1 of its tensors have no place in a ReDrafter head"),
    ],
    ids=str,
)
def test_a_damaged_file_is_refused(
    tmp_path: Path, change: dict[str, Tensor | None], words: str
) -> None:
    tensors = {key: t for key, t in (tensors_of() | change).items() if t is not None}
    folder = written(tmp_path / "head", tensors_of())
    save_file(tensors, folder / "model.safetensors")
    with pytest.raises(ModelError, match=words):
        load_head(folder, TARGET)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"num_draft_layers": 3}, r"lacks the tensor 'lm_head\.2\.linear\.weight'"),
        ({"num_draft_layers": 1}, "2 of its tensors have no place"),
        ({"hidden_size": 48}, "should read twice the hidden size, which is 48"),
        ({"rnn": False}, "3 of its tensors have no place in a ReDrafter head"),
        ({"num_draft_layers": "two"}, "num_draft_layers of its config.json must be a whole number"),
    ],
    ids=str,
)
def test_settings_of_another_head_are_refused(
    tmp_path: Path, config: dict[str, Any], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        load_head(written(tmp_path / "head", tensors_of(), **config), TARGET)


def test_a_head_of_another_target_is_refused(tmp_path: Path) -> None:
    folder = written(tmp_path / "head", tensors_of())
    other = TargetInfo("other", 100, hidden_size=48)
    with pytest.raises(InvalidInput, match=r"hidden size 32 \(the target has 48\), vocabulary 64"):
        load_head(folder, other)


def test_it_is_cut_to_some_tokens(tmp_path: Path) -> None:
    tensors = tensors_of()
    folder = written(tmp_path / "head", tensors)
    head = load_head(folder, TARGET, token_ids=torch.tensor([9, 3]))
    state = Alone(head.open(VIEW, 10))
    with torch.inference_mode():
        state.observe(HIDDEN, [5, 7])
        found = state.start(1)
    assert head.token_ids is not None
    assert head.token_ids.tolist() == [3, 9]
    expected = by_the_equations(tensors, (7,))[None, [3, 9]]
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


def test_drawn_beams_are_refused(tmp_path: Path) -> None:
    head = load_head(written(tmp_path / "head", tensors_of()), TARGET)
    for children, shape in itertools.product(("sampled", "independent"), ("beam", "dynamic")):
        settings: Any = {"children": children, "shape": shape}
        if shape == "dynamic":
            RedrafterDrafter(head, **settings)
            continue
        with pytest.raises(InvalidInput, match="a drawn token must never be dropped"):
            RedrafterDrafter(head, **settings)
