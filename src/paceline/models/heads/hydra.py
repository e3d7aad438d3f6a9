"""Hydra heads: each reads the final state and the embeddings of all tokens drafted before it.

Head i, counted from 0, reads x_i = [h, E(t_1), ..., E(t_{i + 1})], where h is the final state of a
token and t_1 the token after it, and predicts t_{i + 2}:

    z = R x_i + SiLU(W x_i + b);   further blocks z + SiLU(W' z + b');   logits = O_i z + c_i

Sources: Hydra, Ankner et al. 2402.05109, section 3; the format is that of its repository
(`hydra_lm_head.pt`), architecture "mlp".
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.hidden import Hidden
from paceline.core.target import Need, TargetInfo
from paceline.core.view import TargetView
from paceline.drafting.heads.sequential import (
    LevelRows,
    SequentialState,
    Stepped,
    step_together,
)
from paceline.errors import InvalidInput, ModelError
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import (
    HeadFormat,
    HeadOptions,
    Product,
    always,
    check_target,
    kept_outputs,
)

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:(\d+)\.)?weight")
_OURS = "mlp"
"""The architecture that is read; the others have an attention layer of their own."""


class Block(NamedTuple):
    """One residual block: x to `residual(x) + SiLU(linear(x))`; None passes x on as it is."""

    linear: Product
    residual: Product | None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it."""
        return (x if self.residual is None else self.residual(x)) + functional.silu(self.linear(x))


@dataclass(frozen=True, slots=True, eq=False)
class HydraHead:
    """See `drafting.heads.contract.Head`.

    Args:
        name: for messages.
        blocks: the blocks of each head.
        outputs: the output layer of each head.
        dtype: of the activations.
        grounded: whether heads read the embeddings of the tokens before.
        layer: the layer whose input they read; None is the final state.
    """

    name: str
    blocks: tuple[tuple[Block, ...], ...] = field(repr=False)
    outputs: tuple[Product, ...] = field(repr=False)
    dtype: torch.dtype
    grounded: bool = True
    layer: int | None = None
    token_ids: Tensor | None = field(default=None, repr=False)

    @property
    def drafter(self) -> str:
        """See `Head.drafter`."""
        return "hydra"

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `Head.needs`."""
        state = Hidden(final=True) if self.layer is None else Hidden((self.layer,))
        own: set[Need | Hidden] = {state}
        return frozenset(own | {Need.EMBEDDING} if self.grounded else own)

    @property
    def max_levels(self) -> int:
        """See `Head.max_levels`."""
        return len(self.outputs)

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        products = [one for block in self.blocks[0] for one in block if one is not None]
        return sum(one.num_bytes for one in (*products, self.outputs[0]))

    def open(self, target: TargetView, capacity: int) -> SequentialState:
        """See `Head.open`."""
        return SequentialState(self, target, self.layer)

    def score(self, work: Sequence[LevelRows]) -> list[Stepped]:
        """See `Head.score`."""
        return step_together(self._step, work)

    def _step(self, level: int, states: Tensor, tokens: Tensor, target: TargetView) -> Stepped:
        """See `sequential.Step`."""
        states = states.to(self.dtype)
        if self.grounded:
            assert target.embed is not None
            states = torch.cat([states, target.embed(tokens).to(self.dtype)], dim=-1)
        x = states
        for block in self.blocks[level]:
            x = block(x)
        return Stepped(self.outputs[level](x), states)


def _read(files: HeadFiles, options: HeadOptions) -> HydraHead:
    kind = files.config.get("hydra_head_arch", _OURS)
    if kind != _OURS or any(key.startswith("prefix_embed") for key in files.keys):
        raise InvalidInput(
            f"{files.path} is a Hydra head of architecture {kind!r}, with attention of its own; "
            f"Paceline reads {_OURS!r}"
        )
    places = {
        (int(match[1]), int(match[2])): match[0]
        for key in files.keys
        if (match := _BLOCK.fullmatch(key))
    }
    if not places:
        raise ModelError(
            f"{files.path} has no tensors of Hydra heads, such as 'hydra_mlp.0.0.linear.weight', "
            "though its config.json names them; the file of weights is missing or another one"
        )
    outputs = {int(match[1]): match[0] for k in files.keys if (match := _OUTPUT.fullmatch(k))}
    num_heads = 1 + max(head for head, _ in places)
    # Numbers of blocks have gaps where a layer without weights stands between them.
    numbers = sorted({number for _, number in places})
    weight = files.take(places[min(places)], (None, None), why="its kind")
    hidden = weight.shape[0]
    grounded = weight.shape[1] != hidden
    dtype = options.dtype_for(weight)
    blocks, ends = [], []
    for head in range(num_heads):
        own = []
        for rank, number in enumerate(numbers):
            width = hidden * (head + 2) if grounded and rank == 0 else hidden
            key = f"hydra_mlp.{head}.{number}"
            linear = _product(files, options, dtype, f"{key}.linear", (hidden, width))
            residual = None
            if width != hidden:
                stem = f"{key}.res_connection"
                residual = _product(files, options, dtype, stem, (hidden, width))
            own.append(Block(linear, residual))
        blocks.append(tuple(own))
        stem = outputs.get(head, f"hydra_lm_head.{head}.weight").removesuffix(".weight")
        ends.append(_taken(files, stem, (None, hidden)))
    files.refuse_leftovers("Hydra")
    rows = {len(weight) for weight, _ in ends}
    if len(rows) > 1:
        raise ModelError(
            f"{files.path}: the output layers have {' and '.join(map(str, sorted(rows)))} rows; "
            "the tensors do not belong together"
        )
    check_target(files, options.target, hidden_size=hidden, vocab_size=rows.pop())
    kept = kept_outputs(files, None, options)
    products = tuple(
        Product(kept.of(weight), None if bias is None else kept.of(bias), options, dtype)
        for weight, bias in ends
    )
    layer = _layer(files, options.target)
    return HydraHead(files.name, tuple(blocks), products, dtype, grounded, layer, kept.token_ids)


def _layer(files: HeadFiles, target: TargetInfo | None) -> int | None:
    """The layer whose input is read: `hidden_state_offset` counts back from the final state."""
    if not files.config.get("hidden_state_offset", 0):
        return None
    offset, layers = files.number("hidden_state_offset"), target.num_layers if target else 0
    if offset > layers:
        known = f"has {layers}" if target else "is not known"
        raise InvalidInput(
            f"{files.path} reads the state {offset} layers before the final one, and the number of "
            f"layers of the target {known}; give load_head the target that it was trained for"
        )
    return layers - offset


def _product(
    files: HeadFiles,
    options: HeadOptions,
    dtype: torch.dtype,
    stem: str,
    shape: tuple[int | None, int],
) -> Product:
    return Product(*_taken(files, stem, shape), options, dtype)


def _taken(
    files: HeadFiles, stem: str, shape: tuple[int | None, int]
) -> tuple[Tensor, Tensor | None]:
    """A weight, and its bias if it has one."""
    weight = files.take(f"{stem}.weight", shape, why="its first block")
    bias = None
    if files.has(f"{stem}.bias"):
        bias = files.take(f"{stem}.bias", (len(weight),), why="its weight")
    return weight, bias


def _recognises(files: HeadFiles) -> bool:
    return "hydra_num_heads" in files.config or any(_BLOCK.fullmatch(key) for key in files.keys)


FORMAT = HeadFormat("Hydra", always("hydra"), _recognises, _read)
