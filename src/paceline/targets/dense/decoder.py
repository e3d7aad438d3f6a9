"""A lean decoder for the Llama family: few operations per layer, weights packed for the CPU.

It computes what `targets.hf` computes with the model's own modules, and the tests compare the two.
Small models are bound by the interpreter, so the projections of a layer are fused (query, key and
value; gate and up) and residuals are added inside the products.

Families: llama, mistral without a window, qwen2, qwen3, gemma (the first version).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need, TargetInfo
from paceline.core.view import TargetView
from paceline.kernels.linear import Linear, pad_rows
from paceline.targets.attention import Pass
from paceline.targets.decoder import Output
from paceline.targets.dense.architecture import Architecture
from paceline.targets.dense.layer import Angles, Layer, LayerMath
from paceline.targets.layers import run_layers
from paceline.targets.slot import Slot
from paceline.targets.slot_layers import SlotLayers
from paceline.targets.state.kv import KeyValueCache
from paceline.targets.text_head import TextHead


class DenseDecoder:
    """A `targets.decoder.Decoder` for the Llama family; see `loading` for how to make one.

    Args:
        architecture: see `Architecture`.
        embedding: `[V, hidden]`.
        layers: the decoder layers.
        norm: the last norm's weight.
        head: hidden states to logits, of all tokens or of those in `head_ids`.
        head_ids: the token ids of the head's outputs; None is all of them.
        dtype: of the activations.
        whole_head: `[V, hidden]`, if `head` is cut: for the tokens of a sequence's text.
        row_costs: the time of its products by rows, see `kernels.packing.row_costs`.
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
        *,
        whole_head: Tensor | None = None,
        row_costs: Mapping[int, float] | None = None,
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
            gives=frozenset(
                {Need.LAYERS, Need.EMBEDDING, Need.HEAD, Hidden.all(architecture.num_layers)}
            ),
            row_costs=row_costs or {},
            num_weights=architecture.num_weights,
            hidden_size=embedding.shape[1],
            mask_token=architecture.mask_token,
        )
        least_rows = max(layer.qkv.least_rows for layer in self.layers)
        self._math = LayerMath(architecture, dtype, least_rows)

    @property
    def num_bytes(self) -> int:
        """The bytes of weights that a pass reads."""
        return self.head.num_bytes + sum(layer.num_bytes for layer in self.layers)

    @property
    def num_layers(self) -> int:
        """See `targets.layers.LayeredDecoder.num_layers`."""
        return self.architecture.num_layers

    def state(self, capacity: int) -> KeyValueCache:
        """See `targets.decoder.Decoder.state`."""
        return KeyValueCache(capacity)

    def run(self, batch: Pass) -> Output:
        """See `targets.decoder.Decoder.run`."""
        x, entering = run_layers(self, batch)
        final = None
        if batch.hidden is not None and batch.hidden.final:
            final = self._math.norm(x, self.norm)
        hidden = None if batch.hidden is None else HiddenStates(entering, final)
        if not len(batch.scored):
            return Output(x.new_empty(0, self.architecture.vocab_size), hidden)
        states = (
            self._math.norm(x[batch.scored], self.norm) if final is None else final[batch.scored]
        )
        logits = self.head_logits(states)
        for segment in batch.segments:
            for columns in segment.columns:
                columns.fill(logits[segment.outputs], states[segment.outputs])
        return Output(logits, hidden)

    def text_head(self) -> TextHead | None:
        """See `targets.decoder.Decoder.text_head`."""
        if self._whole_head is None:
            return None
        return TextHead(self._whole_head, self._in_head, self.dtype)

    def view(self, info: TargetInfo, slot: Slot) -> TargetView:
        """See `targets.decoder.Decoder.view`."""
        return TargetView(
            info,
            layers=SlotLayers(self, slot),
            embed=torch.inference_mode()(lambda tokens: self.embed(tokens)[: len(tokens)]),
            head=torch.inference_mode()(self.head_logits),
        )

    def embed(self, tokens: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.embed`."""
        x = self.pad(self.embedding[tokens].to(self.dtype))
        scale = self.architecture.embedding_scale
        return x if scale == 1.0 else x * torch.tensor(scale, dtype=self.dtype)

    def pad(self, x: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.pad`."""
        return self._math.pad(x)

    def layer(
        self,
        number: int,
        x: Tensor,
        batch: Pass,
        angles: Angles,
        *,
        attention: bool = True,
        mlp: bool = True,
    ) -> Tensor:
        """See `targets.layers.LayeredDecoder.layer`."""
        layer, math = self.layers[number], self._math
        if attention:
            assert layer.input_norm is not None
            x = math.attention(number, layer, math.norm(x, layer.input_norm), x, batch, angles)
        return math.feed_forward(layer, x) if mlp else x

    def logits(self, x: Tensor) -> Tensor:
        """See `targets.layers.LayeredDecoder.logits`."""
        return self.head_logits(self._math.norm(x, self.norm))

    def head_logits(self, states: Tensor) -> Tensor:
        """The logits `[n, V]` of states after the last norm."""
        logits = self.head(pad_rows(states, self.head.least_rows))[: len(states)]
        if self.head_ids is None:
            return logits
        all_logits = logits.new_full((len(logits), self.architecture.vocab_size), -torch.inf)
        return all_logits.index_copy_(1, self.head_ids, logits)

    def angles(self, positions: Tensor) -> Angles:
        """See `targets.layers.LayeredDecoder.angles`."""
        return self._math.angles(positions)
