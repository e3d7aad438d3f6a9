"""Bad input, the same list for every format: one clear line each, and never a traceback.

A head of each format is written, and then a file is cut short, a key left out, a setting changed to
something else, or the target is another one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from paceline.core.hidden import Hidden
from paceline.core.target import TargetInfo
from paceline.errors import InvalidInput, ModelError, PacelineError
from paceline.models.heads import load_head
from paceline.models.heads.loading import FORMATS, open_head
from tests import tiny_head_files, tiny_heads
from tests.models.heads import test_dflash, test_eagle, test_eagle3, test_mtp
from tests.tiny_heads import NUM_LAYERS, VOCAB, WIDTH, layer_settings
from tests.tiny_models import build

TARGET = replace(tiny_heads.TARGET, gives=tiny_heads.TARGET.gives | {Hidden.all(2 * NUM_LAYERS)})
"""Deep enough for heads whose layers follow from the number of the target's."""


def of_model(kind: str) -> Callable[[Path], Path]:
    model = build(
        "llama", vocab_size=VOCAB, hidden_size=WIDTH, num_hidden_layers=NUM_LAYERS, head_dim=8
    )
    return lambda folder: tiny_head_files.HEADS[kind](model, folder)


def zlab(folder: Path) -> Path:
    config = {
        "model_type": "qwen3",
        **layer_settings(num_hidden_layers=test_dflash.NUM_LAYERS),
        "block_size": 4,
        "dflash_config": {"mask_token_id": 3, "target_layer_ids": [0, 1, 3]},
    }
    return test_dflash.write(folder, test_dflash.weights_of(outputs=None), config)


def eagle3(folder: Path) -> Path:
    weights = test_eagle3.weights_of(test_eagle3.settings_of())
    return test_eagle.write(folder, test_eagle.midlayer(weights))


def peagle(folder: Path) -> Path:
    return test_eagle3.write(folder, test_eagle3.settings_of(mask_token=5, max_levels=3))


def mtp(naming: str) -> Callable[[Path], Path]:
    return lambda folder: test_mtp.write(folder, naming, test_mtp.module_weights())


WRITERS: dict[str, Callable[[Path], Path]] = {
    **{kind: of_model(kind) for kind in tiny_head_files.HEADS},
    "p-eagle": peagle,
    "eagle-1 of its repository": lambda folder: test_eagle.write(
        folder, test_eagle.eagle1_weights()
    ),
    "eagle-3 of its repository": eagle3,
    "dflash of z-lab": zlab,
    "mtp of MiMo": mtp("mimo"),
    "mtp of DeepSeek": mtp("deepseek"),
}
"""A writer of each format, for the target of `tiny_heads`."""

LAYERS = {
    "eagle": "eagle_aux_hidden_state_layer_ids",
    "p-eagle": "eagle_aux_hidden_state_layer_ids",
    "eagle-3 of its repository": "eagle_aux_hidden_state_layer_ids",
    "dflash": "aux_hidden_state_layer_ids",
    "dspark": "aux_hidden_state_layer_ids",
    "dflash of z-lab": "dflash_config.target_layer_ids",
}
"""The setting that numbers the layers, in the formats that have one."""


@pytest.fixture(params=WRITERS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def folder(kind: str, tmp_path: Path) -> Path:
    return WRITERS[kind](tmp_path / "head")


def weights_in(folder: Path) -> Path:
    (found,) = folder.glob("*.safetensors")
    return found


def refusal(
    source: Path,
    target: TargetInfo = TARGET,
    *,
    of: type[PacelineError] = PacelineError,
    **how: Any,
) -> str:
    """The one line of the error with which a head is refused."""
    with pytest.raises(of) as caught:
        load_head(source, target, **how)
    line = str(caught.value)
    assert "\n" not in line.strip()
    assert 40 < len(line) < 600, line
    return line


def outcome(source: Path) -> PacelineError | None:
    """The error with which a head is refused, in one line; None if it loads."""
    try:
        load_head(source, TARGET)
    except PacelineError as error:
        found = error
    else:
        return None
    assert "\n" not in str(found).strip()
    return found


def test_every_format_is_here(tmp_path: Path) -> None:
    found = {open_head(write(tmp_path / kind)).format for kind, write in WRITERS.items()}
    assert found == set(FORMATS)


def test_what_is_written_loads(folder: Path) -> None:
    """Otherwise the refusals below would say nothing."""
    assert load_head(folder, TARGET).num_bytes > 0


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5, 0.99])
def test_a_truncated_file(folder: Path, share: float) -> None:
    file = weights_in(folder)
    content = file.read_bytes()
    file.write_bytes(content[: int(share * len(content))])
    line = refusal(folder, of=ModelError)
    assert f"{file.name} is damaged or truncated" in line
    assert "get it again" in line


def test_a_pickle_without_the_switch(folder: Path) -> None:
    file = weights_in(folder)
    pickled = file.with_suffix(".bin")
    torch.save(load_file(file), pickled)
    file.unlink()
    line = refusal(folder, of=InvalidInput)
    assert pickled.name in line
    assert "allow_pickle=True (--allow-pickle)" in line
    assert load_head(folder, TARGET, allow_pickle=True).num_bytes > 0
    pickled.write_bytes(pickled.read_bytes()[:-300])
    assert "damaged, truncated" in refusal(folder, of=ModelError, allow_pickle=True)


def test_a_head_for_a_target_of_another_width(folder: Path) -> None:
    line = refusal(folder, replace(TARGET, name="another", hidden_size=48), of=InvalidInput)
    assert "another" in line
    assert "48" in line
    assert str(WIDTH) in line


def test_a_head_for_another_vocabulary(folder: Path) -> None:
    line = refusal(folder, replace(TARGET, name="another", vocab_size=VOCAB + 9), of=InvalidInput)
    assert f"{VOCAB + 9}" in line
    assert f"{VOCAB}" in line


OPTIONAL = ("bias", "embed_tokens.weight", "lm_head.weight", "d2t", "t2d", "confidence_head")
"""What a file may leave out: a bias, rows that the target has as well, a vocabulary of its own."""


def test_a_missing_key(folder: Path, kind: str) -> None:
    """Each in turn: it is named, or the head does not need it."""
    from safetensors.torch import save_file

    file = weights_in(folder)
    whole = load_file(file)
    refused = 0
    for key in whole:
        save_file({name: x for name, x in whole.items() if name != key}, file)
        error = outcome(folder)
        if error is None:
            assert any(part in key for part in OPTIONAL) or (
                kind in OF_MODELS and is_of_the_model(key)
            ), key
        else:
            refused += 1
            assert isinstance(error, ModelError), f"{key}: {error}"
    assert refused > 3


OF_MODELS = ("mtp of MiMo", "mtp of DeepSeek")
"""The formats that are a part of a model's own files."""


def is_of_the_model(key: str) -> bool:
    """Whether a tensor is the rest of a model in whose files a module stands."""
    return key.startswith(("model.layers.0.", "model.embed_tokens", "lm_head"))


@pytest.mark.parametrize("shape", [(), (3,), (2, 2), (1, 1, 1)], ids=str)
def test_a_tensor_of_another_shape(folder: Path, kind: str, shape: tuple[int, ...]) -> None:
    from safetensors.torch import save_file

    file = weights_in(folder)
    whole = load_file(file)
    for key in whole:
        if kind in OF_MODELS and is_of_the_model(key):
            continue
        save_file({**whole, key: torch.ones(shape)}, file)
        refusal(folder)


def settings(config: dict[str, Any], at: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The place of every setting, within others too."""
    for name, value in config.items():
        yield (*at, name)
        if isinstance(value, dict):
            yield from settings(value, (*at, name))


def changed(config: dict[str, Any], place: tuple[str, ...], value: Any) -> dict[str, Any]:
    first, *rest = place
    inner = value if not rest else changed(config[first], tuple(rest), value)
    return {**config, first: inner}


@pytest.mark.parametrize("value", [None, "x", -1, 0, 2.5, [], {}, 10**9, True], ids=repr)
def test_a_setting_that_is_something_else(folder: Path, value: Any) -> None:
    """Whatever it is: a head, or one line; never an error of Python."""
    file = folder / "config.json"
    config = json.loads(file.read_text())
    for place in settings(config):
        file.write_text(json.dumps(changed(config, place, value)))
        try:
            outcome(folder)
        except Exception as error:
            raise AssertionError(f"{'.'.join(place)} = {value!r}: {error!r}") from error


@pytest.mark.parametrize("content", ["", "{", "[]", "null", "3", '{"model_type": 5}', "\x00"])
def test_a_configuration_that_is_none(folder: Path, content: str) -> None:
    (folder / "config.json").write_text(content)
    outcome(folder)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize(
    "numbers",
    [[1, 2, 99], [-5, 1, 2], ["a", "b", "c"], [1, 1, 2], [0.5, 1, 2], 7, "2", [True, 2, 3]],
)
def test_unknown_layer_numbers(name: str, numbers: Any, tmp_path: Path) -> None:
    folder = WRITERS[name](tmp_path / "head")
    file = folder / "config.json"
    config = json.loads(file.read_text())
    *above, last = LAYERS[name].split(".")
    inner = config
    for part in above:
        inner = inner[part]
    inner[last] = numbers
    file.write_text(json.dumps(config))
    dialect = {"dialect": "eagle"} if "repository" in name else {}
    line = refusal(folder, **dialect)
    assert "layers" in line


def test_a_target_that_lacks_the_layers(folder: Path, kind: str) -> None:
    if kind not in LAYERS:
        return
    few = replace(TARGET, name="a shallow one", gives=frozenset({Hidden.all(1)}))
    assert "a shallow one" in refusal(folder, few, of=InvalidInput)


def test_nothing_at_all(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no weights of a head" in refusal(tmp_path / "empty")
    assert "no such draft head" in refusal(tmp_path / "nowhere")
