"""The lean decoder against the models' own passes, and its way of loading them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import LlamaConfig

from paceline.core.drafts import Auxiliary, Draft
from paceline.core.passes import prefill
from paceline.core.protocols import Work
from paceline.errors import ModelError, UnsupportedModel
from paceline.kernels import attention, packing, row_operations, vnni
from paceline.kernels.llvm import bfloat16 as loops
from paceline.kernels.packing import Storage
from paceline.targets.cached import CachedTarget
from paceline.targets.dense.architecture import FAMILIES, Architecture, unsupported
from paceline.targets.dense.decoder import DenseDecoder
from paceline.targets.dense.loading import from_weights, load
from paceline.targets.hf.decoder import HFDecoder
from tests.greedy import COUNT, DRAFTERS, PROMPT, assert_greedy, generated
from tests.rigged import ragged, run
from tests.tiny_models import VOCAB, build, lean_target, own_logits, tiny, tokens_of

LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR_ROPE = {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-one-head-each": ("llama", {"num_key_value_heads": 4}),
    "llama-wide-heads": ("llama", {"head_dim": 12}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "linear-rope": ("llama", {"rope_parameters": LINEAR_ROPE}),
    "yarn-rope": ("llama", {"rope_parameters": YARN_ROPE}),
    "other-theta": ("llama", {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}}),
    "llama-gelu": ("llama", {"hidden_act": "gelu"}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen2-tied": ("qwen2", {"tie_word_embeddings": True}),
    "qwen3": ("qwen3", {}),
    "gemma": ("gemma", {}),
}
CHAIN = Draft(tokens_of(5, seed=1))
TREE = Draft(tokens_of(8, seed=2), parents=(-1, -1, 0, 1, 1, 4, 0, 5))
"""Branches on two levels; the deepest path is 1, 4, 5, 7."""

# The rounding of float32 products, summed in another order.
CLOSE = {"rtol": 0, "atol": 1e-4}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> Any:
    family, changes = MODELS[request.param]
    return build(family, **changes)


@pytest.fixture(scope="module")
def target(model: Any) -> CachedTarget:
    return CachedTarget(lean(model))


@pytest.fixture(scope="module")
def answer(model: Any) -> tuple[int, ...]:
    """transformers' own, to `PROMPT`."""
    return generated(model, PROMPT, COUNT)


def lean(model: Any, *, dtype: torch.dtype = torch.float32, **options: Any) -> DenseDecoder:
    return from_weights(model.state_dict(), model.config, dtype=dtype, **options)


def scored(target: CachedTarget, text: tuple[int, ...], draft: Draft) -> Tensor:
    slot = target.open(len(text) + len(draft) + 1)
    prefill(target, slot, text[:-1])
    return target.score([Work(slot, [text[-1]], draft)])[0].logits


@pytest.mark.parametrize("storage", ["plain", "packed"])
class TestEqualsTheModel:
    def test_its_own_forward_pass(self, model: Any, storage: Any) -> None:
        text = tokens_of(40, seed=3)
        target = CachedTarget(lean(model, storage=storage, head_storage=storage))
        found = scored(target, text[:1], Draft(text[1:]))
        torch.testing.assert_close(found, own_logits(model, text), **CLOSE)

    @pytest.mark.parametrize("draft", [Draft(), CHAIN, TREE], ids=["nothing", "chain", "tree"])
    def test_the_decoder_over_its_modules(self, model: Any, storage: Any, draft: Draft) -> None:
        text = tokens_of(11, seed=4)
        found = scored(
            CachedTarget(lean(model, storage=storage, head_storage=storage)), text, draft
        )
        expected = scored(CachedTarget(HFDecoder(model, probe=False)), text, draft)
        torch.testing.assert_close(found, expected, **CLOSE)

    def test_a_ragged_batch(self, model: Any, storage: Any) -> None:
        target = CachedTarget(lean(model, storage=storage, head_storage=storage))
        cases = [(tokens_of(n, seed=n), d) for n, d in ((1, CHAIN), (40, TREE), (7, Draft()))]
        work = []
        for text, draft in cases:
            slot = target.open(64)
            prefill(target, slot, text[:-1])
            work.append(Work(slot, [text[-1]], draft))
        for scores, (text, draft) in zip(target.score(work), cases, strict=True):
            torch.testing.assert_close(scores.logits, scored(target, text, draft), **CLOSE)
            for node in (-1, *range(len(draft))):
                whole = (*text, *(draft.tokens[i] for i in draft.path(node)))
                torch.testing.assert_close(
                    scores.logits[node + 1], own_logits(model, whole)[-1], **CLOSE
                )


@pytest.mark.parametrize("k", range(9))
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_greedy_tokens_are_those_of_generate(
    target: CachedTarget, answer: tuple[int, ...], drafter: str, k: int
) -> None:
    assert_greedy(target, answer, drafter, k)


def test_long_greedy_text_is_that_of_generate(model: Any) -> None:
    prompt = tokens_of(9, seed=5)
    expected = generated(model, prompt, 40)
    target = CachedTarget(lean(model))
    plain = run(target, prompt, max_tokens=40)
    assert plain.tokens == expected
    rigged = ragged((*prompt, *expected), VOCAB, [0, 3, 1, 4])
    assert run(target, prompt, rigged, k=4, max_tokens=40).tokens == expected


def test_fills_the_context_to_the_last_token() -> None:
    model = build("llama")
    run_of = run(CachedTarget(lean(model)), tokens_of(100), max_tokens=None)
    assert 100 + len(run_of.tokens) == model.config.max_position_embeddings


@pytest.mark.parametrize("storage", ["plain", "packed"])
@pytest.mark.parametrize("family", ["llama", "qwen3", "gemma"])
def test_bfloat16_is_as_close_to_float32_as_the_model_s_own(family: str, storage: Any) -> None:
    """Rounding errors have no right value, but those of ours must be no larger than theirs."""
    model = build(family)
    text = tokens_of(60, seed=6)
    exact = own_logits(model, text)
    model.to(torch.bfloat16)
    theirs = (own_logits(model, text).float() - exact).norm() / exact.norm()
    decoder = lean(model, dtype=torch.bfloat16, storage=storage, head_storage=storage)
    ours = (scored(CachedTarget(decoder), text[:1], Draft(text[1:])) - exact).norm() / exact.norm()
    assert 0 < ours < 1.3 * theirs < 0.1


@pytest.mark.parametrize("storage", ["int8", "int4"])
def test_quantized_storage_keeps_the_logits_near(storage: Any) -> None:
    sizes = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32}
    model = build("llama", **sizes)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.mul_(128**-0.5 / 0.25)  # logits of the size that models have
    text = tokens_of(20, seed=7)
    decoder = lean(model, storage=storage, head_storage="plain")
    found = scored(CachedTarget(decoder), text[:1], Draft(text[1:]))
    exact = own_logits(model, text)
    error = float((found - exact).norm() / exact.norm())
    # Each of some 14 products in a row adds its share of noise: about 1/127 (with bfloat16
    # activations) or 1/15 of the range, over the spread of a normal weight.
    assert 0 < error < {"int8": 0.06, "int4": 0.45}[storage]
    assert decoder.num_bytes < {"int8": 0.3, "int4": 0.25}[storage] * lean(model).num_bytes


class TestHead:
    IDS = torch.tensor([0, 3, 17, 40, 63])

    @pytest.mark.parametrize("tied", [True, False])
    @pytest.mark.parametrize("draft", [Draft(), CHAIN, TREE], ids=["none", "chain", "tree"])
    def test_a_cut_head_is_the_full_one_on_its_ids_and_on_the_text(
        self, tied: bool, draft: Draft
    ) -> None:
        model = build("llama", tie_word_embeddings=tied)
        text = tokens_of(8)
        cut = scored(CachedTarget(lean(model, head_ids=self.IDS)), text, draft)
        full = scored(CachedTarget(lean(model)), text, draft)
        assert cut.shape == full.shape
        for row, node in enumerate((None, *range(len(draft)))):
            path = () if node is None else draft.path(node)
            kept = sorted({*self.IDS.tolist(), *text, *(draft.tokens[i] for i in path)})
            torch.testing.assert_close(cut[row, kept], full[row, kept], **CLOSE)
            others = torch.ones(VOCAB, dtype=torch.bool).index_fill(0, torch.tensor(kept), False)
            assert bool((cut[row, others] == -torch.inf).all())

    def test_the_text_counts_as_long_as_it_stands(self) -> None:
        target = CachedTarget(lean(build("llama"), head_ids=self.IDS))
        slot = target.open(32)
        prefill(target, slot, [1, 2])

        def known(token: int, draft: Draft = CHAIN) -> set[int]:
            row = target.score([Work(slot, [token], draft)])[0].logits[-1]
            return set((row > -torch.inf).nonzero().flatten().tolist())

        first = set(self.IDS.tolist())
        assert known(5, Draft((6, 7))) == first | {1, 2, 5, 6, 7}
        target.commit(slot, [0])
        assert known(8, Draft()) == first | {1, 2, 5, 6, 8}
        target.rollback(slot, 3)
        assert known(5, Draft()) == first | {1, 2, 5}
        target.rollback(slot, 1)
        assert known(9, Draft()) == first | {1, 9}
        other = target.open(8)
        row = target.score([Work(other, [4], Draft())])[0].logits[0]
        assert set((row > -torch.inf).nonzero().flatten().tolist()) == first | {4}

    def test_sequences_in_one_pass_have_their_own_text(self) -> None:
        """In a batch, in prefills of two tokens, with rows that are no draft, again and again."""
        target = CachedTarget(lean(build("llama"), head_ids=self.IDS), prefill_rows=2)
        full = CachedTarget(lean(build("llama")))
        texts = [(1, 2, 5, 2, 9), (4, 7, 9)]
        aux = Auxiliary((30, 31), positions=(1, 2), visible=torch.ones(2, 5, dtype=torch.bool))
        drafts = [Draft((11, 12), aux=aux), Draft((13, 14), parents=(-1, -1))]
        for _ in range(2):
            work, exact = [], []
            for text, draft in zip(texts, drafts, strict=True):
                for one, found in ((target, work), (full, exact)):
                    slot = one.open(32)
                    prefill(one, slot, text[:-1])
                    one.rollback(slot, 1)
                    prefill(one, slot, text[1:-1])
                    found.append(Work(slot, [text[-1]], draft))
            for item, text, own, whole in zip(
                work, texts, target.score(work), full.score(exact), strict=True
            ):
                draft = item.draft
                seen = [(), *((draft.tokens[i] for i in draft.path(n)) for n in range(len(draft)))]
                if draft.aux is not None:
                    seen += [(*draft.tokens, *draft.aux.tokens)] * 2
                for row, path in enumerate(seen):
                    kept = sorted({*self.IDS.tolist(), *text, *path})
                    torch.testing.assert_close(
                        own.logits[row, kept], whole.logits[row, kept], **CLOSE
                    )
                    assert int((own.logits[row] > -torch.inf).sum()) == len(kept)

    def test_many_tokens_and_back(self) -> None:
        """The store grows, and after a cut others stand in its places."""
        target = CachedTarget(lean(build("llama"), head_ids=self.IDS))
        slot = target.open(128)
        text = list(range(1, VOCAB))
        prefill(target, slot, text)
        target.rollback(slot, 3)
        prefill(target, slot, text[:2:-1])
        row = target.score([Work(slot, [2], Draft())])[0].logits[0]
        full = CachedTarget(lean(build("llama")))
        other = full.open(128)
        prefill(full, other, text[:3] + text[:2:-1])
        exact = full.score([Work(other, [2], Draft())])[0].logits[0]
        torch.testing.assert_close(row, exact, **CLOSE)

    def test_in_invariant_mode_the_head_is_what_it_was_cut_to(self) -> None:
        target = CachedTarget(lean(build("llama"), head_ids=self.IDS), fixed_rows=4)
        row = scored(target, (1, 2, 5), Draft())[0]
        assert (row > -torch.inf).nonzero().flatten().tolist() == self.IDS.tolist()

    def test_a_head_of_its_own_counts_even_where_it_is_said_to_be_tied(self) -> None:
        model = build("llama", tie_word_embeddings=False)
        model.config.tie_word_embeddings = True
        text = tokens_of(8)
        found = scored(CachedTarget(lean(model)), text, Draft())
        torch.testing.assert_close(found[0], own_logits(model, text)[-1], **CLOSE)

    def test_no_head_and_none_tied_is_a_missing_weight(self) -> None:
        model = build("llama", tie_word_embeddings=False)
        weights = {n: w for n, w in model.state_dict().items() if n != "lm_head.weight"}
        with pytest.raises(ModelError, match=r"'lm_head\.weight' is missing"):
            from_weights(weights, model.config, dtype=torch.float32)


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("self_attn.k_proj", (slice(0, -1), slice(None))),
        ("self_attn.o_proj", (slice(None), slice(0, -1))),
        ("mlp.up_proj", (slice(0, -1), slice(None))),
        ("mlp.gate_proj", (slice(None), slice(0, -1))),
        ("mlp.down_proj", (slice(None), slice(0, -1))),
    ],
)
def test_a_weight_of_another_size_than_the_configuration_says(name: str, cut: Any) -> None:
    model = build("llama")
    weights = {**model.state_dict()}
    key = f"model.layers.1.{name}.weight"
    weights[key] = weights[key][cut]
    with pytest.raises(ModelError, match=rf"model\.layers\.1\.{name}.*do not belong together"):
        from_weights(weights, model.config, dtype=torch.float32)


class TestUnsupported:
    @pytest.mark.parametrize(
        ("family", "changes", "reason"),
        [
            ("gpt2", {}, "'gpt2'"),
            ("gemma2", {}, "'gemma2'"),
            ("mistral", {"sliding_window": 8}, "sliding window"),
            (
                "qwen2",
                {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
                "sliding window",
            ),
            ("llama", {"hidden_act": "relu"}, "activation 'relu'"),
            (
                "llama",
                {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
                "'dynamic'",
            ),
            (
                "llama",
                {
                    "rope_parameters": {
                        "rope_type": "default",
                        "rope_theta": 1e4,
                        "partial_rotary_factor": 0.5,
                    }
                },
                "partial rotary",
            ),
            ("gemma", {"use_bidirectional_attention": True}, "later tokens"),
        ],
    )
    def test_each_reason(self, family: str, changes: dict[str, Any], reason: str) -> None:
        config = build(family, **changes).config if family != "llama" else llama(**changes)
        found = unsupported(config)
        assert found is not None
        assert reason in found
        with pytest.raises(UnsupportedModel, match="the lean decoder does not take this model"):
            Architecture.of(config)

    def test_quantized_weights(self) -> None:
        """Their scales stand in files of their own, which nothing here would read."""
        config = llama()
        config.quantization_config = {"quant_method": "fp8"}
        assert unsupported(config) == "its weights are quantized"

    def test_the_families_are_taken(self) -> None:
        assert unsupported(llama()) is None
        assert set(FAMILIES) == {family for family, _ in MODELS.values()}


def llama(**changes: Any) -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB, hidden_size=32, intermediate_size=48, num_attention_heads=4, **changes
    )


class TestFiles:
    @pytest.mark.parametrize("shards", ["10GB", "20KB"], ids=["one-file", "sharded"])
    @pytest.mark.parametrize("tied", [True, False])
    def test_loads_what_transformers_saves(self, tmp_path: Path, shards: str, tied: bool) -> None:
        model = build("qwen2", tie_word_embeddings=tied)
        model.save_pretrained(tmp_path, max_shard_size=shards)
        assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards == "20KB")
        decoder = load(tmp_path, model.config, dtype=torch.float32)
        text = tokens_of(12)
        found = scored(CachedTarget(decoder), text, TREE)
        torch.testing.assert_close(found, scored(CachedTarget(lean(model)), text, TREE), **CLOSE)

    def test_a_missing_weight_is_named(self, tmp_path: Path) -> None:
        model = build("llama")
        model.save_pretrained(tmp_path)
        file = tmp_path / "model.safetensors"
        weights = load_file(file)
        del weights["model.layers.1.mlp.up_proj.weight"]
        save_file(weights, file, metadata={"format": "pt"})
        with pytest.raises(ModelError, match=r"'model\.layers\.1\.mlp\.up_proj\.weight'"):
            load(tmp_path, model.config, dtype=torch.float32)

    def test_weights_of_another_size_are_refused(self) -> None:
        model = build("llama")
        model.config.vocab_size = VOCAB + 8
        with pytest.raises(ModelError, match=r"\(64, 32\).*\(72, 32\)"):
            lean(model)


_MEASURE = """
import sys
from pathlib import Path
import torch
from transformers import AutoConfig
from paceline.kernels import packing
from paceline.targets.dense.loading import load

torch.set_num_threads(1)

def peak():
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024

folder, storage = Path(sys.argv[1]), sys.argv[2]
config = AutoConfig.from_pretrained(folder)
# Their probes would be the peak of a model this small.
packing.least_packed_rows = lambda dtype: 1
packing.own_product_is_chosen = packing.loops.is_available
# Both products, so that their code and threads are part of the baseline.
for kind in (storage, "plain"):
    packing.make_linear(torch.ones(32, 32, dtype=torch.bfloat16), None, kind)(
        torch.ones(4, 32, dtype=torch.bfloat16)
    )
before = peak()
decoder = load(
    folder, config, dtype=torch.bfloat16, storage=storage, head_storage=storage
)
print(peak() - before, decoder.num_bytes)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the memory from /proc")
@pytest.mark.parametrize("storage", ["plain", "packed"])
def test_loading_takes_hardly_more_memory_than_the_weights(tmp_path: Path, storage: str) -> None:
    """The peak of a process, over what it was before, for a model of 200 MB in many layers."""
    config = LlamaConfig(
        vocab_size=1024,
        hidden_size=1024,
        intermediate_size=2304,
        num_attention_heads=16,
        num_hidden_layers=9,
        dtype="bfloat16",
    )
    config.save_pretrained(tmp_path)
    hidden, inner = config.hidden_size, config.intermediate_size
    weights = {
        name: torch.zeros(config.vocab_size, hidden, dtype=torch.bfloat16)
        for name in ("model.embed_tokens.weight", "lm_head.weight")
    }
    weights["model.norm.weight"] = torch.zeros(hidden, dtype=torch.bfloat16)
    shapes = {f"self_attn.{x}_proj": (hidden, hidden) for x in "qkvo"}
    shapes |= {"mlp.gate_proj": (inner, hidden), "mlp.up_proj": (inner, hidden)}
    shapes |= {"mlp.down_proj": (hidden, inner)}
    shapes |= {"input_layernorm": (hidden,), "post_attention_layernorm": (hidden,)}
    for layer in range(config.num_hidden_layers):
        for name, shape in shapes.items():
            weight = torch.zeros(shape, dtype=torch.bfloat16)
            weights[f"model.layers.{layer}.{name}.weight"] = weight
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    size = sum(weight.nbytes for weight in weights.values())
    products = sum(
        w.nbytes for name, w in weights.items() if name.endswith(("proj.weight", "lm_head.weight"))
    )
    assert 190e6 < size < 210e6

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(_MEASURE), str(tmp_path), storage],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, read = map(int, done.stdout.split())
    assert read == products
    # Plain weights that need not be joined may stay where the file is mapped.
    assert (0.5 if storage == "plain" else 0.9) * size < peak < 1.2 * size


@pytest.mark.parametrize("family", ["llama-biases", "qwen3", "gemma"])
def test_padding_of_few_rows_changes_no_logits(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With padding forced on: one to three rows, one sequence and several, biases included."""
    monkeypatch.setattr(packing, "least_packed_rows", lambda dtype: 4)
    model = build(*MODELS[family][:1], **MODELS[family][1])
    padded = CachedTarget(
        from_weights(model.state_dict(), model.config, dtype=torch.float32, storage="packed")
    )
    text = tokens_of(9, seed=3)
    for length in range(4):
        draft = Draft(text[5 : 5 + length])
        slot, other = padded.open(20), padded.open(20)
        prefill(padded, slot, text[:4])
        found = padded.score([Work(slot, [text[4]], draft), Work(other, [text[0]], Draft())])
        alone = padded.score([Work(slot, [text[4]], draft)])[0].logits
        expected = own_logits(model, text[: 5 + length])[4:]
        torch.testing.assert_close(found[0].logits, expected, **CLOSE)
        torch.testing.assert_close(alone, expected, **CLOSE)
        torch.testing.assert_close(found[1].logits, own_logits(model, text[:1]), **CLOSE)


@pytest.mark.skipif(not loops.is_available(), reason="no AVX-512 BF16, or no llvmlite")
@pytest.mark.parametrize("storage", ["packed", "int4"])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3"])
def test_compiled_loops_give_a_chain_the_bits_of_plain_decoding(
    family: str, storage: Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In bfloat16, without invariant mode: draft by draft against one row at a time.

    With all loops, whatever is faster on this machine.
    """
    if storage == "int4" and not vnni.is_available():
        pytest.skip("no AVX-512 VNNI")
    monkeypatch.setattr(packing, "own_product_is_chosen", lambda: True)
    monkeypatch.setattr(attention, "is_chosen", lambda width: True)
    monkeypatch.setattr(row_operations, "is_chosen", lambda: True)
    model = build(
        family, hidden_size=128, num_attention_heads=4, head_dim=32, num_key_value_heads=2
    )
    decoder = from_weights(
        model.state_dict(),
        model.config,
        dtype=torch.bfloat16,
        storage=storage,
        head_storage=storage,
    )
    target = CachedTarget(decoder)
    text = tokens_of(60, seed=3)
    plain, drafted = target.open(70), target.open(70)
    for slot in (plain, drafted):
        prefill(target, slot, text[:20])
    at = 20
    for size in (1, 2, 3, 5, 8, 12, 7):
        rows = target.score([Work(drafted, [text[at]], Draft(text[at + 1 : at + size]))])[0].logits
        target.commit(drafted, range(size - 1))
        for row in rows:
            alone = target.score([Work(plain, [text[at]], Draft())])[0].logits[0]
            target.commit(plain, [])
            assert torch.equal(row, alone)
            at += 1


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_weights_that_a_prompt_goes_through_are_those_of_the_layers(family: str) -> None:
    """Counted in the module; norms and biases, which the lean decoder leaves out, are few."""
    model = tiny(family)
    layers = [w for name, w in model.named_parameters() if ".layers." in name and w.dim() == 2]
    assert lean_target(model).info.num_weights == sum(weight.numel() for weight in layers)
    whole = HFDecoder(model, probe=False).info.num_weights
    assert sum(weight.numel() for weight in layers) <= whole
    assert whole < 1.1 * sum(weight.numel() for weight in layers)
