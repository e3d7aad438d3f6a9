"""LoRA adapters, merged into the weights of a model while it is loaded.

A module with the weight W computes (W + s B A) x, where A `[r, in]` and B `[out, r]` are the
adapter's and the scale s is alpha / r, or alpha / sqrt(r) in rank-stabilized LoRA. The sum is
computed in float32 and rounded once, and a merged model costs what its base does.

Source: Hu et al. 2106.09685, section 4.1; Kalajdzievski 2312.03732; the files that peft writes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from paceline.errors import ModelError

_EMBEDDING, _HEAD = "model.embed_tokens", "lm_head"


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """What is added to the weight of one module.

    Args:
        a, b: A `[r, in]` and B `[out, r]`.
        scale: s.
        is_embedding: the weight is the transpose, a row for each input.
    """

    a: Tensor
    b: Tensor
    scale: float
    is_embedding: bool

    def delta(self) -> Tensor:
        """What is added, s B A, in float32: `[out, in]`, or `[in, out]` for an embedding."""
        product = (self.b.float() @ self.a.float()) * self.scale
        return product.T if self.is_embedding else product


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """A LoRA adapter that has been read.

    Args:
        path: its folder.
        base: the name of the model that it was trained on, if it says so.
        low_rank: what is added, by module.
        own: weights that were trained whole, by name.
        of_base: weights of the base that were saved with it, by name; a head that is tied to one of
            them changes too.
    """

    path: Path
    base: str | None
    low_rank: Mapping[str, LowRank]
    own: Mapping[str, Tensor]
    of_base: Mapping[str, Tensor]

    @property
    def names(self) -> frozenset[str]:
        """The weights that it changes."""
        return frozenset((*(f"{name}.weight" for name in self.low_rank), *self.own, *self.of_base))

    def changes(self, module: str) -> bool:
        """Whether the weight of this module alone changes, and not one that is tied to it."""
        return module in self.low_rank or f"{module}.weight" in self.own

    def applied(self, name: str, weight: Tensor, *, is_transposed: bool = False) -> Tensor:
        """What takes the place of a weight.

        Args:
            name: its name.
            weight: the base's, `[out, in]`.
            is_transposed: it is `[in, out]`, as in GPT-2.

        Raises:
            ModelError: the adapter is for a weight of another size.
        """
        if name in self.own:
            return self._of_size(name, self.own[name], weight).to(weight.dtype)
        found = self.low_rank.get(name.removesuffix(".weight"))
        if found is None:
            return weight
        delta = found.delta().T if is_transposed else found.delta()
        return (weight.float() + self._of_size(name, delta, weight)).to(weight.dtype)

    def _of_size(self, name: str, ours: Tensor, weight: Tensor) -> Tensor:
        if ours.shape != weight.shape or not weight.is_floating_point():
            raise ModelError(
                f"{self.path}: the adapter's {name} is {list(ours.shape)}, and the model's is "
                f"{list(weight.shape)} in {str(weight.dtype).removeprefix('torch.')}; it was "
                "trained on another model, or the weights of this one are quantized"
            )
        return ours.to(weight.device)

    def without_place(self, names: list[str]) -> ModelError:
        """The error for weights that the model does not have."""
        return ModelError(
            f"{self.path}: {len(names)} of the adapter's weights have no place in the model "
            f"({', '.join(sorted(names)[:3])}); it was trained on another model"
        )


class Merged(Mapping[str, Tensor]):
    """The weights of a checkpoint with an adapter's, each merged when it is asked for.

    Args:
        weights: of the base, by name.
        adapter: what to merge.
        tied: the head of the base is its embedding. Where the adapter changes one of them alone,
            the head gets a weight of its own.

    Raises:
        ModelError: the adapter has weights that the base lacks.
    """

    def __init__(self, weights: Mapping[str, Tensor], adapter: Adapter, *, tied: bool) -> None:
        self._weights, self._adapter = weights, adapter
        self._source = {name: name for name in weights}
        head, embedding = f"{_HEAD}.weight", f"{_EMBEDDING}.weight"
        is_split = adapter.changes(_EMBEDDING) or head in adapter.names
        if tied and head not in weights and is_split:
            self._source[head] = embedding
        if left := [name for name in adapter.names if name not in self._source]:
            raise adapter.without_place(left)

    def __getitem__(self, name: str) -> Tensor:
        source = self._source[name]
        weight = self._weights[source]
        saved = self._adapter.of_base.get(name, self._adapter.of_base.get(source))
        if saved is not None:
            weight = self._adapter._of_size(source, saved, weight).to(weight.dtype)
        return self._adapter.applied(name, weight)

    def __contains__(self, name: object) -> bool:
        return name in self._source

    def __iter__(self) -> Iterator[str]:
        return iter(self._source)

    def __len__(self) -> int:
        return len(self._source)


def merge_into(model: Any, adapter: Adapter) -> None:
    """Merge an adapter into a model of transformers. Weights that are tied to a changed one stay.

    Raises:
        ModelError: the adapter has weights that the model lacks.
    """
    from transformers.pytorch_utils import Conv1D

    modules = dict(model.named_modules())
    places = {name: name.rpartition(".") for name in adapter.names}
    if left := [
        name
        for name, (module, _, kind) in places.items()
        if getattr(modules.get(module), kind, None) is None
    ]:
        raise adapter.without_place(left)
    with torch.no_grad():
        for name, tensor in adapter.of_base.items():
            weight = model.get_parameter(name)
            weight.copy_(adapter._of_size(name, tensor, weight))
        for name in (*(f"{name}.weight" for name in adapter.low_rank), *adapter.own):
            place, _, kind = places[name]
            module = modules[place]
            transposed = isinstance(module, Conv1D) and kind == "weight"
            merged = adapter.applied(name, getattr(module, kind), is_transposed=transposed)
            setattr(module, kind, nn.Parameter(merged, requires_grad=False))
    if adapter.changes(_HEAD) or adapter.changes(_EMBEDDING):
        model.config.tie_word_embeddings = False
