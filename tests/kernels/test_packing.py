"""Packed products against the plain one."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
import weakref
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from paceline.errors import InvalidInput
from paceline.kernels import packing
from paceline.kernels.bfloat16 import Bfloat16Linear
from paceline.kernels.linear import pad_rows
from paceline.kernels.llvm import bfloat16 as loops
from paceline.kernels.packing import (
    STORAGES,
    PackedLinear,
    PlainLinear,
    make_linear,
    pack_modules,
    packing_helps,
)
from paceline.kernels.quantized import Int4Linear, Int8Linear
from tests.tiny_models import build, own_logits, tokens_of

ODD = [(1, 1), (3, 5), (17, 7), (33, 96), (64, 129), (257, 64)]


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype)


@pytest.mark.parametrize("kind", [PlainLinear, PackedLinear])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ODD, ids=str)
@pytest.mark.parametrize("biased", [False, True], ids=["no-bias", "bias"])
@pytest.mark.parametrize("residual", [False, True], ids=["alone", "residual"])
def test_dense_products_are_the_product(
    kind: Any, dtype: torch.dtype, shape: tuple[int, int], biased: bool, residual: bool
) -> None:
    outputs, inputs = shape
    weight = normal(outputs, inputs, dtype=dtype)
    bias = normal(outputs, seed=1, dtype=dtype) if biased else None
    layer = kind(weight.clone(), bias)
    for rows in (0, *range(1, 10)):
        x = normal(rows, inputs, seed=2, dtype=dtype)
        added = normal(rows, outputs, seed=3, dtype=dtype) if residual else None
        before = None if added is None else added.clone()
        found = layer(x, added)
        exact = x.double() @ weight.double().T
        size = x.double().abs() @ weight.double().abs().T  # what rounding is measured against
        for term in (bias, added):
            if term is not None:
                exact, size = exact + term.double(), size + term.double().abs()
        assert found.dtype == dtype
        assert found.shape == (rows, outputs)
        # Up to three roundings of the result in bfloat16, of 2**-9 each; float32 sums.
        relative = 1e-5 if dtype is torch.float32 else 3 * 2.0**-9
        assert bool(((found.double() - exact).abs() <= relative * size).all())
        assert added is None or torch.equal(added, before)  # type: ignore[arg-type]
    assert layer.num_bytes == weight.nbytes


@pytest.mark.parametrize("storage", STORAGES)
def test_takes_rows_that_are_not_contiguous(storage: Any) -> None:
    layer = make_linear(normal(32, 64), None, storage)
    x = normal(5, 128, seed=1)
    torch.testing.assert_close(layer(x[:, ::2]), layer(x[:, ::2].contiguous()))
    torch.testing.assert_close(layer(x.T[:64, :3].T), layer(x.T[:64, :3].T.contiguous()))


class TestMakeLinear:
    @pytest.mark.parametrize(
        ("storage", "shape", "kind"),
        [
            ("plain", (16, 32), PlainLinear),
            ("packed", (16, 32), PackedLinear),
            ("int8", (16, 32), Int8Linear),
            ("int8", (7, 32), Int8Linear),
            ("int4", (16, 32), Int4Linear),
            ("int4", (9, 32), Int4Linear),
        ],
    )
    def test_storage(self, storage: Any, shape: tuple[int, int], kind: type) -> None:
        assert type(make_linear(normal(*shape), None, storage)) is kind

    @pytest.mark.parametrize("storage", ["int8", "int4"])
    def test_rows_that_the_kernels_read_past_are_kept_dense(self, storage: Any) -> None:
        """torch's int8 kernel crashes on rows of 33 (and of 8) numbers."""
        layer = make_linear(normal(16, 33), None, storage)
        assert type(layer) in (PlainLinear, PackedLinear)

    @pytest.mark.parametrize("helps", [True, False])
    def test_auto_packs_where_that_helps(
        self, helps: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packing, "packing_helps", lambda dtype, device: helps)
        layer = make_linear(normal(16, 32), None, "auto")
        assert type(layer) is (PackedLinear if helps else PlainLinear)

    def test_an_unknown_storage(self) -> None:
        with pytest.raises(InvalidInput, match="auto, plain, packed, int8, int4; it is 'int2'"):
            make_linear(normal(16, 32), None, "int2")  # type: ignore[arg-type]


class TestPackModules:
    @pytest.mark.parametrize("family", ["llama", "gpt_neox", "phi"])
    def test_the_same_logits(self, family: str) -> None:
        model = build(family)
        text = tokens_of(20)
        expected = own_logits(model, text)
        assert pack_modules(model, "packed")
        assert not any(type(module) is nn.Linear for module in model.modules())
        torch.testing.assert_close(own_logits(model, text), expected, rtol=0, atol=1e-4)

    def test_each_original_is_freed_before_the_next_is_packed(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model = build("llama", tie_word_embeddings=False)
        linears = [m for m in model.modules() if type(m) is nn.Linear]
        originals = [weakref.ref(m.weight) for m in linears]
        bytes_before = sum(m.weight.nbytes for m in linears)
        del linears
        alive: list[int] = []
        packed_bytes: list[int] = []

        def watch(weight: Tensor, bias: Tensor | None, storage: Any) -> Any:
            alive.append(sum(original() is not None for original in originals))
            packed_bytes.append(weight.nbytes)
            return make_linear(weight, bias, storage)

        monkeypatch.setattr(packing, "make_linear", watch)
        assert pack_modules(model, "packed")
        assert alive == list(range(len(originals), 0, -1))
        assert all(original() is None for original in originals)
        assert sum(packed_bytes) == bytes_before

    def test_a_tied_head_leaves_the_embedding(self) -> None:
        model = build("llama", tie_word_embeddings=True)
        expected = own_logits(model, tokens_of(9))
        embedding = model.get_input_embeddings().weight.clone()
        assert pack_modules(model, "packed")
        assert torch.equal(model.get_input_embeddings().weight, embedding)
        torch.testing.assert_close(own_logits(model, tokens_of(9)), expected, rtol=0, atol=1e-4)

    def test_plain_storage_and_nothing_to_pack_change_nothing(self) -> None:
        model = build("llama")
        modules = list(model.modules())
        assert not pack_modules(model, "plain")
        assert list(model.modules()) == modules
        assert not pack_modules(nn.Sequential(nn.ReLU()), "packed")

    def test_auto_asks_whether_it_helps(self, monkeypatch: pytest.MonkeyPatch) -> None:
        asked: list[Any] = []
        monkeypatch.setattr(packing, "packing_helps", lambda *args: bool(asked.append(args)))
        assert not pack_modules(build("llama"), "auto")
        assert asked == [(torch.float32, "cpu")]


class TestPackingHelps:
    @pytest.fixture(autouse=True)
    def _forget(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
        packing_helps.cache_clear()
        yield
        packing_helps.cache_clear()

    @pytest.mark.parametrize(
        ("dtype", "device"),
        [
            (torch.float64, "cpu"),
            (torch.float16, "cpu"),
            (torch.float32, "cuda"),
            (torch.bfloat16, "mps"),
        ],
        ids=str,
    )
    def test_not_without_a_kernel(
        self, dtype: torch.dtype, device: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packing, "_sweep", lambda layers, inputs: pytest.fail("measured"))
        assert not packing_helps(dtype, device)

    def test_not_without_onednn(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
        assert not packing_helps(torch.float32)

    @pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="torch without oneDNN")
    @pytest.mark.parametrize("faster", [PlainLinear, PackedLinear])
    def test_is_measured_once(self, faster: type, monkeypatch: pytest.MonkeyPatch) -> None:
        swept: list[type] = []

        def sweep(layers: Any, inputs: Any) -> float:
            swept.append(type(layers[0]))
            assert [len(x) for x in inputs] == [1, 5]
            return 1.0 if type(layers[0]) is faster else 2.0

        monkeypatch.setattr(packing, "_sweep", sweep)
        for _ in range(2):
            assert packing_helps(torch.float32) == (faster is PackedLinear)
        assert swept == [PlainLinear, PackedLinear] * 4, "interleaved, and once"


class TestLeastRows:
    """Whether few rows are padded: two rows against four, measured once."""

    @pytest.mark.parametrize(
        ("seconds", "expected"),
        [
            ({1: 1.0, 2: 1.1, 4: 0.9}, 4),
            ({1: 1.0, 2: 1.1, 4: 1.05}, 1),  # more than one row takes
            ({1: 1.0, 2: 1.0, 4: 0.99}, 1),  # noise
        ],
    )
    def test_four_rows_have_to_be_faster_than_two_and_than_one(
        self, seconds: dict[int, float], expected: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packing, "_products", lambda packed, x: seconds[len(x)])
        packing.least_packed_rows.cache_clear()
        try:
            assert packing.least_packed_rows(torch.float32) == expected
            monkeypatch.setattr(packing, "_products", lambda packed, x: pytest.fail("measured"))
            assert packing.least_packed_rows(torch.float32) == expected
        finally:
            packing.least_packed_rows.cache_clear()

    def test_padding_goes_below(self) -> None:
        x = torch.ones(2, 3)
        assert pad_rows(x, 2) is x
        assert pad_rows(x, 1) is x
        assert pad_rows(x, 4).tolist() == [[1.0] * 3] * 2 + [[0.0] * 3] * 2


PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")


@pytest.mark.skipif(
    not PAGES.exists() or "[madvise]" not in PAGES.read_text(),
    reason="needs a system that gives large pages to those who ask",
)
@pytest.mark.parametrize("setting", [None, "0"])
def test_weights_lie_in_large_pages_unless_the_user_says_no(setting: str | None) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "THP_MEM_ALLOC_ENABLE"}
    environment |= {} if setting is None else {"THP_MEM_ALLOC_ENABLE": setting}
    code = (
        "import paceline, torch; weights = torch.ones(2**24); "
        "print(open('/proc/self/smaps_rollup').read())"
    )
    run = [sys.executable, "-c", code]
    found = subprocess.run(run, check=True, env=environment, capture_output=True, text=True).stdout
    (size,) = re.findall(r"AnonHugePages: +(\d+) kB", found)
    assert (int(size) > 30_000) == (setting is None)


class TestRowCosts:
    """The time of products by rows."""

    SECONDS: ClassVar = {4: 1.0, 6: 0.98, 7: 1.3, 8: 1.2, 10: 1.4, 12: 1.5, 16: 2.0}

    def test_they_rise_and_count_the_rows_that_are_padded_to(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swept: list[int] = []

        def sweep(products: Any, inputs: Any) -> float:
            swept.append(len(products))
            return self.SECONDS[len(inputs[0])]

        product = PlainLinear(normal(32, 64), None)
        monkeypatch.setattr(product, "least_rows", 4, raising=False)
        monkeypatch.setattr(packing, "_sweep", sweep)
        monkeypatch.setattr(packing, "_PROBE_BYTES", 3 * product.num_bytes)
        found = packing.row_costs(itertools.repeat(product), 64, torch.float32)
        right = {1: 1.0, 4: 1.0, 6: 1.0, 7: 1.3, 8: 1.3, 10: 1.4, 12: 1.5, 16: 2.0}
        assert found == pytest.approx(right)
        assert set(swept) == {3}, "as many as no cache holds"

    def test_small_models_say_nothing(self) -> None:
        product = PlainLinear(normal(32, 64), None)
        assert packing.row_costs([product] * 9, 64, torch.float32) == {}


class TestPackedKind:
    @pytest.mark.parametrize("chosen", [True, False])
    def test_bfloat16_goes_to_our_own_kernel_where_it_is_chosen(
        self, chosen: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(packing, "own_product_is_chosen", lambda: chosen)
        own = Bfloat16Linear if chosen else PackedLinear
        assert packing.packed_kind(torch.bfloat16, 64) is own
        assert packing.packed_kind(torch.bfloat16, 33) is PackedLinear  # inputs go in pairs
        assert packing.packed_kind(torch.float32, 64) is PackedLinear


class TestOwnProductIsChosen:
    """Our bfloat16 product against oneDNN's, over rows that decoding, drafts and prompts have."""

    @pytest.fixture(autouse=True)
    def _forget(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("PACELINE_CACHE", str(tmp_path))
        packing.own_product_is_chosen.cache_clear()
        yield
        packing.own_product_is_chosen.cache_clear()

    @pytest.mark.skipif(not loops.is_available(), reason="no AVX-512 BF16, or no llvmlite")
    @pytest.mark.parametrize(
        ("ratios", "expected"),
        [
            ({1: 0.9, 6: 1.0, 12: 0.8, 128: 1.0}, True),  # without matrix instructions
            ({1: 0.87, 6: 1.1, 12: 1.4, 128: 7.0}, False),  # with them
            ({1: 1.02, 6: 1.02, 12: 1.02, 128: 1.02}, True),  # equal: ours keeps the bits
        ],
    )
    def test_the_mean_ratio_decides_once(
        self, ratios: dict[int, float], expected: bool, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        swept: list[int] = []

        def sweep(layers: Any, inputs: Any) -> float:
            swept.append(len(inputs[0]))
            return ratios[len(inputs[0])] if type(layers[0]) is Bfloat16Linear else 1.0

        monkeypatch.setattr(packing, "_sweep", sweep)
        for _ in range(2):
            assert packing.own_product_is_chosen() == expected
        assert len(swept) == 2 * 4 * 4, "in turns, and once"

    def test_not_where_it_is_not_available(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(loops, "is_available", lambda: False)
        monkeypatch.setattr(packing, "_sweep", lambda layers, inputs: pytest.fail("measured"))
        assert not packing.own_product_is_chosen()


class Quantized(torch.Tensor):
    """Stands for a weight in a library's own form, as torchao's do."""


def test_weights_in_a_form_of_their_own_stay_as_they_are() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Linear(32, 32))
    own = model[0].weight.detach().as_subclass(Quantized)
    model[0].weight = torch.nn.Parameter(own, requires_grad=False)
    assert packing.pack_modules(model, "int8")
    assert type(model[0]) is torch.nn.Linear
    assert type(model[1]) is packing.PackedModule
    assert not packing.pack_modules(model, "int8"), "there is nothing left to pack"
