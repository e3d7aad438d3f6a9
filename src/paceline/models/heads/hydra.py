"""Hydra heads: each reads the final state and the embeddings of all tokens drafted before it.

Head i, counted from 0, reads x_i = [h, E(t_1), ..., E(t_{i + 1})], where h is the final state of a
token and t_1 the token after it, and predicts t_{i + 2}:

    z = R x_i + SiLU(W x_i + b);   further blocks z + SiLU(W' z + b');   logits = O_i z + c_i

Heads that were trained here may share one output layer (`lm_head.weight`) and a cut vocabulary
(`token_map`, the target's id of each of its rows), or leave their outputs to the target's own head;
that repository's format knows neither.

Sources: Hydra, Ankner et al. 2402.05109, section 3; the format is that of its repository
(`hydra_lm_head.pt`), architecture "mlp".
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
from paceline.drafting.heads.vocabulary import check_token_ids
from paceline.errors import InvalidInput, ModelError
from paceline.models.heads.files import HeadFiles, write_files
from paceline.models.heads.format import (
    HeadFormat,
    HeadOptions,
    Product,
    always,
    check_target,
    kept_outputs,
)
from paceline.models.heads.weights import target_head_is_whole

_BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.linear\.weight")
_OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:(\d+)\.)?weight")
_ROWS, _IDS = "lm_head.weight", "token_map"
_OURS = "mlp"
"""The architecture that is read; the others have an attention layer of their own."""


class Weights(NamedTuple):
    """The weights of Hydra heads, as they are trained and stored.

    Args:
        blocks: for each head, the tensors of its blocks by their names in the file after
            `hydra_mlp.N.`, such as `0.linear.weight`.
        outputs: an output layer `[Vh, d]` for each head, one for all, or none for the target's own.
        token_ids: `[Vh]`, the target's id of each row, ascending; None if all tokens are there.
    """

    blocks: Sequence[Mapping[str, Tensor]]
    outputs: Sequence[Tensor] = ()
    token_ids: Tensor | None = None


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
        outputs: the output layer of each head; none where they use the target's own head.
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
        own |= {Need.EMBEDDING} if self.grounded else set()
        return frozenset(own if self.outputs else own | {Need.HEAD})

    @property
    def max_levels(self) -> int:
        """See `Head.max_levels`."""
        return len(self.blocks)

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        products = [one for block in self.blocks[0] for one in block if one is not None]
        return sum(one.num_bytes for one in (*products, *self.outputs[:1]))

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
        if self.outputs:
            return Stepped(self.outputs[level](x), states)
        assert target.head is not None
        return Stepped(target.head(x), states)


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
    num_heads = 1 + max(head for head, _ in places)
    # Numbers of blocks have gaps where a layer without weights stands between them.
    numbers = sorted({number for _, number in places})
    weight = files.take(places[min(places)], (None, None), why="its kind")
    hidden = weight.shape[0]
    grounded = weight.shape[1] != hidden
    dtype = options.dtype_for(weight)
    blocks = []
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
    ids = files.take(_IDS, (None,)) if files.has(_IDS) else None
    ends = _outputs(files, num_heads, hidden, ids)
    files.refuse_leftovers("Hydra")
    vocab = len(ends[0][0]) if ends and ids is None else None
    check_target(files, options.target, hidden_size=hidden, vocab_size=vocab)
    if ids is not None:
        ids = check_token_ids(
            files.name, ids, None if options.target is None else options.target.vocab_size
        )
    if not ends and options.token_ids is not None:
        raise target_head_is_whole(str(files.path))
    kept = kept_outputs(files, ids, options)
    products = [
        Product(kept.of(weight), None if bias is None else kept.of(bias), options, dtype)
        for weight, bias in ends
    ]
    shared = tuple(products) if len(products) != 1 else tuple(products * num_heads)
    layer = _layer(files, options.target)
    return HydraHead(files.name, tuple(blocks), shared, dtype, grounded, layer, kept.token_ids)


def _outputs(
    files: HeadFiles, num_heads: int, hidden: int, ids: Tensor | None
) -> list[tuple[Tensor, Tensor | None]]:
    """The output layers: of each head, of all, or none where the target's own is used."""
    rows = None if ids is None else len(ids)
    if files.has(_ROWS) or ids is not None:
        return [_taken(files, _ROWS.removesuffix(".weight"), (rows, hidden))]
    if files.config.get("original_lm_head") is True:
        return []
    names = {int(match[1]): match[0] for k in files.keys if (match := _OUTPUT.fullmatch(k))}
    found = []
    for head in range(num_heads):
        stem = names.get(head, f"hydra_lm_head.{head}.weight").removesuffix(".weight")
        found.append(_taken(files, stem, (None, hidden)))
    sizes = {len(weight) for weight, _ in found}
    if len(sizes) > 1:
        raise ModelError(
            f"{files.path}: the output layers have {' and '.join(map(str, sorted(sizes)))} rows; "
            "the tensors do not belong together"
        )
    return found


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


def save_hydra(weights: Weights, folder: Path, *, base_model: str, vocab_size: int) -> list[Path]:
    """Write Hydra heads: `hydra_lm_head.safetensors` and `config.json`.

    Heads with an output layer each and all tokens have the names of Hydra's repository.

    Args:
        weights: what to write, in the dtype in which it is to be stored.
        folder: made if it is not there.
        base_model: the name of the target, for `base_model_name_or_path`.
        vocab_size: V of the target.

    Returns:
        The files.

    Raises:
        InvalidInput: the folder cannot be written to.
    """
    num_heads, outputs = len(weights.blocks), weights.outputs
    tensors = {
        f"hydra_mlp.{head}.{name}": tensor
        for head, block in enumerate(weights.blocks)
        for name, tensor in block.items()
    }
    if len(outputs) == num_heads and weights.token_ids is None:
        tensors |= {f"hydra_lm_head.{head}.weight": rows for head, rows in enumerate(outputs)}
    elif len(outputs) == 1:
        tensors[_ROWS] = outputs[0]
    elif outputs:
        raise InvalidInput("Hydra heads with output layers of their own have all tokens")
    if weights.token_ids is not None:
        tensors[_IDS] = weights.token_ids.to(torch.int64)
    config = {
        "base_model_name_or_path": base_model,
        "hydra_num_heads": num_heads,
        "hydra_num_layers": sum(name.endswith("linear.weight") for name in weights.blocks[0]),
        "hydra_head_arch": _OURS,
        "grounded_heads": True,
        "hidden_state_offset": 0,
        "original_lm_head": not outputs,
        "vocab_size": vocab_size,
    }
    return write_files(folder, "hydra_lm_head.safetensors", tensors, config)
