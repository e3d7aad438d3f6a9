"""The weights of decoder layers, from their names in a checkpoint to fused products."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from mmap import mmap

import torch
from torch import Tensor

from paceline.errors import ModelError
from paceline.kernels.linear import Linear
from paceline.kernels.packing import Storage, make_linear
from paceline.targets.dense.architecture import Architecture
from paceline.targets.dense.layer import Layer

_IDLE = re.compile(r"rotary_emb\.inv_freq$|^model\.mtp|^mtp\.")
"""Tensors that decoding does not read: frequencies that follow from the configuration, and layers
that predict further tokens."""


def without_place(name: str, left: Sequence[str]) -> ModelError:
    """The error for a checkpoint with tensors that the model does not take."""
    return ModelError(
        f"{name}: {len(left)} of its tensors have no place in the model ({', '.join(left[:3])}); "
        "without them it would be another model. Weights quantized in a way that transformers does "
        "not know look like this; use the model in its original precision"
    )


@dataclass(frozen=True, slots=True, eq=False)
class WeightReader:
    """The weights of a model, in the dtype and storage that the decoder wants.

    `join` makes one linear layer of weights with the same inputs, and of their biases.
    """

    weights: Mapping[str, Tensor]
    shape: Architecture
    intermediate_size: int
    dtype: torch.dtype
    join: Callable[[Sequence[Tensor], Sequence[Tensor | None]], Linear]
    read: set[str] = field(default_factory=set)

    def check_all_read(self) -> None:
        """Refuse weights that the decoder does not read: without them it is another model.

        For example scales of quantized weights, or biases that the decoder does not know.
        """
        left = sorted(name for name in set(self.weights) - self.read if not _IDLE.search(name))
        if left:
            raise without_place(self.shape.name, left)

    def raw(self, name: str) -> Tensor:
        """A weight as it is in the file."""
        if name not in self.weights:
            raise ModelError(
                f"{self.shape.name}: the weight {name!r} is missing; the files are incomplete, or "
                "belong to another model"
            )
        self.read.add(name)
        return self.weights[name].detach()

    def dense(self, name: str) -> Tensor:
        """A weight in the dtype of the activations."""
        return self.raw(name).to(self.dtype)

    def vector(self, name: str, size: int) -> Tensor:
        """A weight of this many numbers, in the dtype of the activations."""
        found = self.dense(name).flatten()
        if len(found) != size:
            raise ModelError(
                f"{self.shape.name}: the weight {name!r} has {len(found)} numbers, and by the "
                f"configuration it has {size}; the files do not belong together"
            )
        return found

    def fused(self, names: list[str], outputs: int, inputs: int) -> Linear:
        """One linear layer of several weights, `outputs` rows together."""
        parts = [self.dense(f"{name}.weight") for name in names]
        fit = all(part.dim() == 2 and part.shape[1] == inputs for part in parts)
        if not fit or sum(len(part) for part in parts) != outputs:
            raise ModelError(
                f"{self.shape.name}: the weights {', '.join(names)} are "
                f"{', '.join(str(tuple(part.shape)) for part in parts)}, and config.json says that "
                f"they are {(outputs, inputs)} together; the files do not belong together"
            )
        biases: list[Tensor | None] = [None] * len(names)
        if f"{names[0]}.bias" in self.weights:
            sized = zip(names, parts, strict=True)
            biases = [self.vector(f"{name}.bias", len(part)) for name, part in sized]
        return self.join(parts, biases)

    def layer(self, at: str, *, inputs: int | None = None, input_norm: bool = True) -> Layer:
        """One decoder layer.

        Args:
            at: what the names of its weights begin with, as in "model.layers.3".
            inputs: the width of what goes into the attention; None is the hidden size.
            input_norm: whether there is a norm before the attention.
        """
        shape, hidden, inner = self.shape, self.shape.hidden_size, self.intermediate_size
        heads, kept = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
        width = hidden if inputs is None else inputs
        attention, mlp = f"{at}.self_attn", f"{at}.mlp"
        qk_norms = None
        if f"{attention}.q_norm.weight" in self.weights:
            qk_norms = (
                self.vector(f"{attention}.q_norm.weight", shape.head_dim),
                self.vector(f"{attention}.k_norm.weight", shape.head_dim),
            )
        return Layer(
            input_norm=self.vector(f"{at}.input_layernorm.weight", hidden) if input_norm else None,
            qkv=self.fused([f"{attention}.{x}_proj" for x in "qkv"], heads + 2 * kept, width),
            qk_norms=qk_norms,
            output=self.fused([f"{attention}.o_proj"], hidden, heads),
            post_norm=self.vector(f"{at}.post_attention_layernorm.weight", hidden),
            gate_up=self.fused([f"{mlp}.gate_proj", f"{mlp}.up_proj"], 2 * inner, hidden),
            down=self.fused([f"{mlp}.down_proj"], hidden, inner),
        )

    def embedding(self) -> Tensor:
        """The embedding `[V, hidden]`, as it is in the file."""
        found, expected = (
            self.raw("model.embed_tokens.weight"),
            (self.shape.vocab_size, self.shape.hidden_size),
        )
        if found.shape != expected:
            raise ModelError(
                f"{self.shape.name}: the embedding is {tuple(found.shape)}, and config.json "
                f"says {expected}; the files do not belong together"
            )
        return found

    def head(self) -> Tensor:
        """The output head `[V, hidden]`, as it is in the file.

        A separate head is used even if the configuration says that it is tied, as in transformers.
        An untied model without one has incomplete files.
        """
        tied = self.shape.tied and "lm_head.weight" not in self.weights
        return self.raw("model.embed_tokens.weight" if tied else "lm_head.weight")


def packed(storage: Storage, weights: Sequence[Tensor], biases: Sequence[Tensor | None]) -> Linear:
    """One linear layer of several weights; either all of them have a bias, or none has."""
    weight = _joined(weights) if len(weights) > 1 else weights[0]
    known = [bias for bias in biases if bias is not None]
    return make_linear(weight, torch.cat(known) if known else None, storage)


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The weights `[out, in]`, concatenated.

    They get their own memory mapping, which is returned to the system when it is dropped. On the
    heap they would leave a hole between the packed weights that are allocated meanwhile.
    """
    rows, width = sum(len(part) for part in parts), parts[0].shape[1]
    memory = mmap(-1, rows * width * parts[0].itemsize)
    joined = torch.frombuffer(memory, dtype=parts[0].dtype).view(rows, width)
    return torch.cat(list(parts), out=joined)
