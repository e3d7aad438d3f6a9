"""A lean decoder for the Llama family: few operations a layer, weights packed for the CPU.

It computes what `targets.hf` computes with the model's own modules, which is the reference that
the tests hold it to. Small models are bound by the interpreter; here the projections of a layer
are fused (query, key and value; gate and up), residuals are added inside the products, and the
weights go from the file into their packed form one layer at a time, so that the peak memory is
hardly more than the weights.

Families: llama, mistral without a window, qwen2, qwen3, gemma (the first).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.target import Need, TargetInfo
from paceline.errors import ModelError, UnsupportedModel
from paceline.kernels.linear import Linear, pad_rows
from paceline.kernels.llvm import few_rows
from paceline.kernels.llvm.row_operations import gated, rms_norm, rotate
from paceline.kernels.packing import Storage, make_linear, row_costs
from paceline.targets.attention import Pass, attend
from paceline.targets.dense.checkpoint import Checkpoint
from paceline.targets.layers import hidden_states
from paceline.targets.text_head import TextHead

FAMILIES = frozenset({"llama", "mistral", "qwen2", "qwen3", "gemma"})

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu": functional.gelu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What a configuration says of the shape of a model of the Llama family."""

    name: str
    vocab_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_eps: float
    norm_offset: float
    embedding_scale: float
    activation: str
    max_length: int
    tied: bool
    inverse_frequencies: Tensor
    rotary_scale: float

    @classmethod
    def of(cls, config: Any) -> Architecture:
        """Read a `transformers` configuration.

        Raises:
            UnsupportedModel: another family, or a feature that this decoder does not compute;
                `targets.hf` may.
        """
        if reason := unsupported(config):
            raise UnsupportedModel(f"the lean decoder does not take this model: {reason}")
        gemma = config.model_type == "gemma"
        head_dim = getattr(config, "head_dim", None)
        frequencies, scale = _rotary(config)
        return cls(
            name=config.name_or_path or config.model_type,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_layers=config.num_hidden_layers,
            num_heads=config.num_attention_heads,
            num_kv_heads=config.num_key_value_heads,
            head_dim=head_dim or config.hidden_size // config.num_attention_heads,
            norm_eps=config.rms_norm_eps,
            norm_offset=1.0 if gemma else 0.0,
            embedding_scale=config.hidden_size**0.5 if gemma else 1.0,
            activation=config.hidden_act,
            max_length=config.max_position_embeddings,
            tied=bool(config.tie_word_embeddings),
            inverse_frequencies=frequencies,
            rotary_scale=scale,
        )


def unsupported(config: Any) -> str | None:
    """Why the lean decoder cannot take a model of this configuration; None where it can."""
    if config.model_type not in FAMILIES:
        return f"the family {config.model_type!r} is not one of {', '.join(sorted(FAMILIES))}"
    if "sliding_attention" in (getattr(config, "layer_types", None) or ()) or (
        config.model_type == "mistral" and config.sliding_window is not None
    ):
        return "some layers see a sliding window"
    if getattr(config, "use_bidirectional_attention", None):
        return "its attention sees later tokens"
    if getattr(config, "quantization_config", None) is not None:
        return "its weights are quantized"
    if config.hidden_act not in _ACTIVATIONS:
        return f"the activation {config.hidden_act!r}"
    kind = config.rope_parameters.get("rope_type", "default")
    if kind not in ("default", "linear", "llama3"):
        return f"rotary positions of type {kind!r}"
    if config.rope_parameters.get("partial_rotary_factor", 1.0) != 1.0:
        return "partial rotary positions"
    return None


def _rotary(config: Any) -> tuple[Tensor, float]:
    """The inverse frequencies `[head_dim / 2]` and the scale of cosines and sines."""
    kind = config.rope_parameters.get("rope_type", "default")
    if kind != "default":
        from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

        frequencies, scale = ROPE_INIT_FUNCTIONS[kind](config)
        return frequencies.float(), float(scale)
    head_dim = getattr(config, "head_dim", None)
    dim = head_dim or config.hidden_size // config.num_attention_heads
    exponents = torch.arange(0, dim, 2, dtype=torch.float32) / dim
    return config.rope_parameters["rope_theta"] ** -exponents, 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """The weights of one decoder layer, fused."""

    input_norm: Tensor
    qkv: Linear
    qk_norms: tuple[Tensor, Tensor] | None
    output: Linear
    post_norm: Tensor
    gate_up: Linear
    down: Linear


class DenseDecoder:
    """A `targets.cached.Decoder` for the Llama family. Make it with `load` or `from_weights`.

    Args:
        architecture: the shape.
        embedding: `[V, hidden]`.
        layers: the decoder layers.
        norm: the last norm's weight.
        head: hidden states to logits, of all tokens or of those in `head_ids`.
        head_ids: the token ids of the head's outputs; None is all of them.
        dtype: of the activations.
        whole_head: `[V, hidden]`, where it is cut: for the tokens of a sequence's own text.
    """

    def __init__(
        self,
        architecture: Architecture,
        embedding: Tensor,
        layers: Iterable[Layer],
        norm: Tensor,
        head: Linear,
        head_ids: Tensor | None,
        dtype: torch.dtype,
        whole_head: Tensor | None = None,
    ) -> None:
        self.architecture = architecture
        self.embedding, self.layers, self.norm = embedding, tuple(layers), norm
        self.head, self.head_ids, self.dtype = head, head_ids, dtype
        self._whole_head = whole_head
        self._in_head = frozenset(() if head_ids is None else head_ids.tolist())
        self.device = torch.device("cpu")
        self.info = TargetInfo(
            architecture.name,
            architecture.vocab_size,
            architecture.max_length,
            gives=frozenset({Need.LAYERS}),
            row_costs=row_costs(
                (layer.gate_up for layer in self.layers), architecture.hidden_size, dtype
            ),
        )
        self._least_rows = max(layer.qkv.least_rows for layer in self.layers)
        self._activation = _ACTIVATIONS[architecture.activation]
        if dtype is torch.bfloat16 and architecture.head_dim % few_rows.KEYS == 0:
            few_rows.works(architecture.head_dim)  # compiled now, not in the first pass
        half = architecture.head_dim // 2
        self._sign = torch.cat([-torch.ones(half), torch.ones(half)])

    @property
    def num_bytes(self) -> int:
        """The weights that a pass reads."""
        products = [self.head]
        for layer in self.layers:
            products += [layer.qkv, layer.output, layer.gate_up, layer.down]
        return sum(product.num_bytes for product in products)

    @property
    def num_layers(self) -> int:
        """See `targets.layers.LayeredDecoder.num_layers`."""
        return self.architecture.num_layers

    def run(self, batch: Pass) -> Tensor:
        """See `targets.cached.Decoder.run`."""
        x = hidden_states(self, batch)
        if not len(batch.scored):
            return x.new_empty(0, self.architecture.vocab_size)
        states = self._normed(x[batch.scored], self.norm)
        logits = self._head(states)
        for segment in batch.segments:
            for columns in segment.columns:
                own = slice(segment.first, segment.first + segment.rows)
                columns.fill(logits[own], states[own])
        return logits

    def text_head(self) -> TextHead | None:
        """See `targets.cached.Decoder.text_head`."""
        if self._whole_head is None:
            return None
        return TextHead(self._whole_head, self._in_head, self.dtype)

    def embed(self, tokens: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.embed`."""
        x = self.pad(self.embedding[tokens].to(self.dtype))
        scale = self.architecture.embedding_scale
        return x if scale == 1.0 else x * torch.tensor(scale, dtype=self.dtype)

    def pad(self, x: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.pad`."""
        return pad_rows(x, self._least_rows)

    def layer(
        self,
        number: int,
        x: Tensor,
        batch: Pass,
        angles: tuple[Tensor, Tensor],
        *,
        attention: bool = True,
        mlp: bool = True,
    ) -> Tensor:
        """See `targets.layers.LayeredDecoder.layer`."""
        if attention:
            x = self._attention(number, x, batch, angles)
        if mlp:
            layer = self.layers[number]
            inner = layer.gate_up(self._normed(x, layer.post_norm))
            x = layer.down(gated(inner, self._activation), x)
        return x

    def _attention(
        self, number: int, x: Tensor, batch: Pass, angles: tuple[Tensor, Tensor]
    ) -> Tensor:
        layer, shape, rows = self.layers[number], self.architecture, len(batch.tokens)
        rotated = shape.num_heads + shape.num_kv_heads
        cos, sin = angles
        qkv = layer.qkv(self._normed(x, layer.input_norm))[:rows]
        heads = qkv.view(rows, rotated + shape.num_kv_heads, shape.head_dim)
        turned, value = heads[:, :rotated], heads[:, rotated:]
        if layer.qk_norms is not None:
            query, key = turned.split([shape.num_heads, shape.num_kv_heads], dim=1)
            query, key = (
                self._normed(query, layer.qk_norms[0]),
                self._normed(key, layer.qk_norms[1]),
            )
            turned = torch.cat([query, key], dim=1)
        turned = rotate(turned, cos, sin)
        seen = attend(
            number,
            turned[: shape.num_heads],
            turned[shape.num_heads :],
            value.transpose(0, 1),
            batch,
            scale=shape.head_dim**-0.5,
        )
        return layer.output(self.pad(seen.reshape(rows, -1)), x)

    def logits(self, x: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.logits`."""
        return self._head(self._normed(x, self.norm))

    def _head(self, states: Tensor) -> Tensor:
        logits = self.head(pad_rows(states, self.head.least_rows))[: len(states)]
        if self.head_ids is None:
            return logits
        everywhere = logits.new_full((len(logits), self.architecture.vocab_size), -torch.inf)
        return everywhere.index_copy_(1, self.head_ids, logits)

    def _normed(self, x: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(x, weight, self.architecture.norm_eps, self.architecture.norm_offset)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Rotary cosines and signed sines of the positions, `[N, 1, head_dim]` each."""
        angles = positions[:, None].float() * self.architecture.inverse_frequencies
        angles = torch.cat([angles, angles], dim=-1)
        scale = self.architecture.rotary_scale
        cos, sin = angles.cos() * scale, angles.sin() * scale * self._sign
        return cos.to(self.dtype)[:, None], sin.to(self.dtype)[:, None]

    @classmethod
    def load(
        cls,
        folder: Path,
        config: Any,
        *,
        dtype: torch.dtype,
        storage: Storage = "auto",
        head_storage: Storage = "auto",
        head_ids: Tensor | None = None,
    ) -> DenseDecoder:
        """Load from a folder in Hugging Face layout, layer by layer.

        Args:
            folder: holds `*.safetensors`.
            config: the `transformers` configuration.
            dtype: of the activations and dense weights.
            storage: how the layers' weights are kept.
            head_storage: how the output head is kept.
            head_ids: cut the head to these tokens.

        Raises:
            UnsupportedModel: see `Architecture.of`.
            ModelError: a weight is missing, or has another size than the configuration says.
        """
        return cls.from_weights(
            Checkpoint(folder),
            config,
            dtype=dtype,
            storage=storage,
            head_storage=head_storage,
            head_ids=head_ids,
        )

    @classmethod
    def from_weights(
        cls,
        weights: Mapping[str, Tensor],
        config: Any,
        *,
        dtype: torch.dtype,
        storage: Storage = "auto",
        head_storage: Storage = "auto",
        head_ids: Tensor | None = None,
    ) -> DenseDecoder:
        """Build from named weights, a model's `state_dict()` say. See `load`."""
        shape = Architecture.of(config)
        hidden, inner = shape.hidden_size, config.intermediate_size
        heads, kept = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim

        def raw(name: str) -> Tensor:
            if name not in weights:
                raise ModelError(
                    f"{shape.name}: the weight {name!r} is missing; the files are incomplete, or "
                    "belong to another model"
                )
            return weights[name].detach()

        def dense(name: str) -> Tensor:
            return raw(name).to(dtype)

        def fused(names: list[str], outputs: int, inputs: int) -> Linear:
            parts = [dense(f"{name}.weight") for name in names]
            sizes = {part.shape[1] for part in parts}, sum(len(part) for part in parts)
            if sizes != ({inputs}, outputs):
                raise ModelError(
                    f"{shape.name}: the weights {', '.join(names)} are "
                    f"{', '.join(str(tuple(part.shape)) for part in parts)}, and by config.json "
                    f"they are {(outputs, inputs)} together; the files do not belong together"
                )
            weight = _joined(parts) if len(parts) > 1 else parts[0]
            biased = f"{names[0]}.bias" in weights
            bias = torch.cat([dense(f"{name}.bias") for name in names]) if biased else None
            return make_linear(weight, bias, storage)

        def layer(number: int) -> Layer:
            at = f"model.layers.{number}"
            attention, mlp = f"{at}.self_attn", f"{at}.mlp"
            has_norms = f"{attention}.q_norm.weight" in weights
            return Layer(
                input_norm=dense(f"{at}.input_layernorm.weight"),
                qkv=fused([f"{attention}.{x}_proj" for x in "qkv"], heads + 2 * kept, hidden),
                qk_norms=(
                    (dense(f"{attention}.q_norm.weight"), dense(f"{attention}.k_norm.weight"))
                    if has_norms
                    else None
                ),
                output=fused([f"{attention}.o_proj"], hidden, heads),
                post_norm=dense(f"{at}.post_attention_layernorm.weight"),
                gate_up=fused([f"{mlp}.gate_proj", f"{mlp}.up_proj"], 2 * inner, hidden),
                down=fused([f"{mlp}.down_proj"], hidden, inner),
            )

        def whole_head() -> Tensor:
            # A head of its own counts even where the configuration says that it is tied, as in
            # transformers. Where neither is there, the files are incomplete.
            tied = shape.tied and "lm_head.weight" not in weights
            return raw("model.embed_tokens.weight" if tied else "lm_head.weight")

        def head() -> Linear:
            weight = whole_head() if head_ids is None else whole_head()[head_ids]
            return make_linear(weight.to(dtype), None, head_storage)

        with torch.inference_mode():
            # Only the rows of the tokens that come up are read, so the embedding may stay where
            # the file is mapped.
            embedding = raw("model.embed_tokens.weight")
            if embedding.shape != (shape.vocab_size, shape.hidden_size):
                raise ModelError(
                    f"{shape.name}: the embedding is {tuple(embedding.shape)}, and config.json "
                    f"says {(shape.vocab_size, shape.hidden_size)}; the files do not belong "
                    "together"
                )
            return cls(
                shape,
                embedding,
                (layer(number) for number in range(shape.num_layers)),
                dense("model.norm.weight"),
                head(),
                head_ids,
                dtype,
                None if head_ids is None else whole_head(),
            )


def _joined(parts: list[Tensor]) -> Tensor:
    """The weights `[out, in]` one behind the other.

    They lie in a mapping of their own, which goes back to the system when it is dropped. The heap
    would keep its place, as a hole between the packed weights that are allocated meanwhile.
    """
    rows, width = sum(len(part) for part in parts), parts[0].shape[1]
    memory = mmap(-1, rows * width * parts[0].itemsize)
    joined = torch.frombuffer(memory, dtype=parts[0].dtype).view(rows, width)
    return torch.cat(parts, out=joined)
