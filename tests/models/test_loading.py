"""From names, folders and objects to a decoder: which one, in which dtype, with which head."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from paceline.core.drafts import Draft
from paceline.core.protocols import Work
from paceline.errors import InvalidInput, ModelError, UnknownName
from paceline.kernels.packing import PackedLinear, PlainLinear
from paceline.kernels.quantized import Int4Linear, Int8Linear
from paceline.models.finding import DTYPES, native_dtype
from paceline.models.loading import load_files, load_object
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.hf.decoder import HFDecoder
from tests import tiny_folders
from tests.tiny_models import own_logits

TEXT = (5, 17, 80, 33, 12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_folders.save(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A family that the lean decoder does not take."""
    return tiny_folders.save(tmp_path_factory.mktemp("gpt2"), "gpt2")


def logits_of(decoder: Any) -> torch.Tensor:
    target = CachedTarget(decoder)
    slot = target.open(len(TEXT))
    return target.score([Work(slot, [TEXT[0]], Draft(TEXT[1:]))])[0].logits


class TestFolders:
    def test_the_llama_family_gets_the_lean_decoder(self, folder: Path) -> None:
        loaded = load_files(folder)
        assert isinstance(loaded.decoder, DenseDecoder)
        expected = own_logits(tiny_folders.model(), TEXT)
        torch.testing.assert_close(logits_of(loaded.decoder), expected, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("storage", ["auto", "plain", "packed"])
    def test_others_get_their_own_modules(self, gpt2: Path, storage: Any) -> None:
        loaded = load_files(gpt2, storage=storage)
        assert isinstance(loaded.decoder, HFDecoder)
        expected = own_logits(tiny_folders.model("gpt2"), TEXT)
        torch.testing.assert_close(logits_of(loaded.decoder), expected, rtol=0, atol=1e-4)

    def test_what_belongs_to_the_text_comes_along(self, folder: Path) -> None:
        loaded = load_files(folder)
        words = tiny_folders.tokenizer()
        assert loaded.tokenizer.get_vocab() == words.get_vocab()
        assert loaded.eos_token_ids == {words.eos_token_id}
        assert loaded.decoder.info.name == folder.name

    @pytest.mark.parametrize(
        ("asked", "expected"),
        [
            ("auto", torch.float32),
            ("float32", torch.float32),
            ("bfloat16", torch.bfloat16),
            (torch.bfloat16, torch.bfloat16),
        ],
        ids=str,
    )
    def test_dtypes(self, folder: Path, asked: Any, expected: torch.dtype) -> None:
        decoder = load_files(folder, dtype=asked, storage="plain").decoder
        assert isinstance(decoder, DenseDecoder)
        assert decoder.dtype == expected

    def test_auto_is_the_dtype_of_the_files(self, tmp_path: Path) -> None:
        tiny_folders.model().to(torch.bfloat16).save_pretrained(tmp_path)
        tiny_folders.tokenizer().save_pretrained(tmp_path)
        decoder = load_files(tmp_path, storage="plain").decoder
        assert isinstance(decoder, DenseDecoder)
        assert decoder.dtype == torch.bfloat16

    def test_native_dtype_is_one_that_can_be_asked_for(self) -> None:
        assert native_dtype() in DTYPES.values()

    @pytest.mark.parametrize(
        ("storage", "body", "head"),
        [
            ("plain", PlainLinear, (PlainLinear,)),
            ("packed", PackedLinear, (PackedLinear,)),
            ("int8", Int8Linear, (PlainLinear, PackedLinear)),
            ("int4", Int4Linear, (Int4Linear,)),
        ],
    )
    def test_storage(self, folder: Path, storage: Any, body: type, head: tuple[type]) -> None:
        decoder = load_files(folder, storage=storage).decoder
        assert isinstance(decoder, DenseDecoder)
        assert type(decoder.layers[0].gate_up) is body
        assert isinstance(decoder.head, head)

    def test_pickled_weights_are_loaded_by_transformers_when_allowed(self, tmp_path: Path) -> None:
        model = tiny_folders.model()
        model.config.save_pretrained(tmp_path)
        tiny_folders.tokenizer().save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        with pytest.raises(InvalidInput, match="allow_pickle=True"):
            load_files(tmp_path)
        loaded = load_files(tmp_path, allow_pickle=True)
        assert isinstance(loaded.decoder, HFDecoder)
        torch.testing.assert_close(
            logits_of(loaded.decoder), own_logits(model, TEXT), rtol=0, atol=1e-4
        )


class TestHead:
    def test_a_number_is_that_many_of_the_first_and_the_special_ones(self, folder: Path) -> None:
        loaded = load_files(folder, head_tokens=50)
        special = {t for t in loaded.tokenizer.all_special_ids if t >= 50}
        assert special
        decoder = loaded.decoder
        assert isinstance(decoder, DenseDecoder)
        assert decoder.head_ids is not None
        assert decoder.head_ids.tolist() == [*range(50), *sorted(special)]
        logits, full = logits_of(decoder), logits_of(load_files(folder).decoder)
        torch.testing.assert_close(logits[:, :50], full[:, :50], rtol=0, atol=1e-4)
        assert bool((logits[:, max(special) + 1 :] == -torch.inf).all())

    def test_ids_of_one_s_own(self, folder: Path) -> None:
        decoder = load_files(folder, head_tokens=[7, 3, 7]).decoder
        assert isinstance(decoder, DenseDecoder)
        assert decoder.head_ids is not None
        assert {3, 7} <= set(decoder.head_ids.tolist())
        assert 4 not in decoder.head_ids.tolist()

    def test_more_than_there_are_is_all(self, folder: Path) -> None:
        decoder = load_files(folder, head_tokens=10_000).decoder
        assert bool(logits_of(decoder).isfinite().all())

    @pytest.mark.parametrize("head_tokens", [0, -1, True, [3, 999], [-1], ["a"]], ids=str)
    def test_nonsense(self, folder: Path, head_tokens: Any) -> None:
        with pytest.raises(InvalidInput, match="head_tokens"):
            load_files(folder, head_tokens=head_tokens)


class TestRefusals:
    @pytest.mark.parametrize("options", [{"storage": "int4"}, {"head_tokens": 5}], ids=str)
    def test_what_needs_the_lean_decoder(self, gpt2: Path, options: Any) -> None:
        with pytest.raises(InvalidInput, match=r"need the lean decoder.*'gpt2'.*leave these"):
            load_files(gpt2, **options)

    def test_storage_and_dtype(self, folder: Path) -> None:
        with pytest.raises(InvalidInput, match="auto, plain, packed, int8, int4; it is 'int2'"):
            load_files(folder, storage="int2")  # type: ignore[arg-type]
        for dtype in ("bf16", torch.float64):
            with pytest.raises(InvalidInput, match="be auto, float32, bfloat16, float16; it is"):
                load_files(folder, dtype=dtype)
        for options in ({"storage": "int4"}, {"head_tokens": 5}):
            with pytest.raises(InvalidInput, match=r"support .*: it does not compute in float16"):
                load_files(folder, dtype="float16", **options)  # type: ignore[arg-type]
        with pytest.raises(InvalidInput, match="packed weights are for the CPU, in float32 or"):
            load_files(folder, dtype="float16", storage="packed")

    def test_names_and_paths(self, tmp_path: Path) -> None:
        with pytest.raises(UnknownName, match="did you mean 'smollm2-135m'"):
            load_files("smollm-135m")
        with pytest.raises(InvalidInput, match="no such file or folder"):
            load_files(tmp_path / "nowhere")

    def test_a_weight_is_missing(self, tmp_path: Path) -> None:
        tiny_folders.save(tmp_path)
        config = tiny_folders.model(num_hidden_layers=3).config
        config.save_pretrained(tmp_path)
        with pytest.raises(ModelError, match=r"'model\.layers\.2\..*' is missing"):
            load_files(tmp_path)

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_a_weight_that_is_missing_is_no_random_number(
        self, tmp_path: Path, family: Any
    ) -> None:
        weights = _weights(tiny_folders.save(tmp_path, family))
        name = next(name for name in weights if "mlp" in name)
        del weights[name]
        _save(weights, tmp_path)
        with pytest.raises(ModelError, match=rf"{name}.*incomplete|{name}' is missing"):
            load_files(tmp_path)

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_a_tensor_that_nobody_reads_is_not_left_out(self, tmp_path: Path, family: Any) -> None:
        weights = _weights(tiny_folders.save(tmp_path, family))
        name = next(name for name in weights if "mlp" in name)
        weights[f"{name}_scale"] = torch.ones(1)
        _save(weights, tmp_path)
        with pytest.raises(ModelError, match=rf"1 of its tensors have no place .*{name}_scale"):
            load_files(tmp_path)

    def test_frequencies_that_follow_from_the_configuration_may_lie_there(
        self, tmp_path: Path
    ) -> None:
        weights = _weights(tiny_folders.save(tmp_path))
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(4)
        _save(weights, tmp_path)
        expected = own_logits(tiny_folders.model(), TEXT)
        found = logits_of(load_files(tmp_path).decoder)
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)

    @pytest.mark.parametrize("family", ["llama", "gpt2"])
    def test_float8_weights_with_scales_beside_them(self, tmp_path: Path, family: Any) -> None:
        """As NVIDIA's ModelOptimizer writes them."""
        weights = _weights(tiny_folders.save(tmp_path, family))
        for name in [name for name in weights if "mlp" in name and weights[name].dim() == 2]:
            weights[f"{name}_scale"] = scale = weights[name].abs().max() / 448
            weights[name] = (weights[name] / scale).to(torch.float8_e4m3fn)
        _save(weights, tmp_path)
        with pytest.raises(ModelError, match=r"have no place in the model .*quantized in a way"):
            load_files(tmp_path)


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def _save(weights: dict[str, torch.Tensor], folder: Path) -> None:
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class TestObjects:
    def test_a_model_stays_as_it_is(self) -> None:
        model = tiny_folders.model(eos_token_id=9)
        loaded = load_object(model, None, "auto")
        assert isinstance(loaded.decoder, HFDecoder)
        assert loaded.eos_token_ids == {9}
        torch.testing.assert_close(
            logits_of(loaded.decoder), own_logits(model, TEXT), rtol=0, atol=1e-4
        )

    def test_the_generation_config_has_the_last_word_on_the_end(self) -> None:
        model = tiny_folders.model(eos_token_id=9)
        model.generation_config.eos_token_id = [4, 5]
        assert load_object(model, None, "plain").eos_token_ids == {4, 5}

    def test_the_tokenizer_s_end_where_the_model_names_none(self) -> None:
        words = tiny_folders.tokenizer()
        loaded = load_object(tiny_folders.model(), words, "auto")
        assert loaded.eos_token_ids == {words.eos_token_id}

    @pytest.mark.parametrize("storage", ["packed", "int4"])
    def test_its_weights_are_not_packed(self, storage: Any) -> None:
        with pytest.raises(InvalidInput, match="stay as they are"):
            load_object(tiny_folders.model(), None, storage)


class TestGenerationConfig:
    def test_sampling_options_are_those_of_the_checkpoint(self, tmp_path: Path) -> None:
        model = tiny_folders.model()
        model.generation_config.repetition_penalty = 1.3
        model.generation_config.top_p = 0.8
        model.generation_config.do_sample = True
        model.generation_config.temperature = 0.6
        model.save_pretrained(tmp_path)
        tiny_folders.tokenizer().save_pretrained(tmp_path)
        for loaded in (load_files(tmp_path), load_object(model, None, "plain")):
            assert loaded.sampling == {"repetition_penalty": 1.3, "top_p": 0.8}

    def test_what_is_not_applied_is_named(self) -> None:
        model = tiny_folders.model()
        model.generation_config.no_repeat_ngram_size = 3
        with pytest.warns(UserWarning, match=r"asks for no_repeat_ngram_size=3, which Paceline"):
            load_object(model, None, "plain")
