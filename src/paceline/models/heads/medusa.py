"""Medusa heads: residual blocks on the final state, and an output layer each.

Head i, counted from 0, predicts the token i + 2 places after the one whose state it reads:

    h_i = x + SiLU(W x + b), once per block;   logits_i = O_i h_i

Sources: Medusa, Cai et al. 2401.10774, section 3.1; the format is that of its repository
(`medusa_lm_head.pt` or `.safetensors`), and in other names that of vLLM.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from paceline.core.hidden import Hidden
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.drafting.heads.one_shot import FinalRow, OneShotState, read_together
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

_BLOCK = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.linear\.weight")
_OUTPUT = re.compile(r"(?:medusa_heads?\.)?(\d+)\.(\d+)\.weight")
_VLLM_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.weight")
_VLLM_OUTPUT = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")


class Weights(NamedTuple):
    """The weights of Medusa heads, as they are trained and stored.

    Args:
        blocks: for each head its blocks, each as weight `[d, d]` and bias `[d]` (or None).
        outputs: for each head its output layer `[Vh, d]`, or one tensor that all of them share.
        token_ids: `[Vh]`, the target's id of each output, ascending; None if all tokens are there.
    """

    blocks: Sequence[Sequence[tuple[Tensor, Tensor | None]]]
    outputs: Sequence[Tensor]
    token_ids: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class MedusaHead:
    """See `drafting.heads.contract.Head`.

    Args:
        name: for messages.
        blocks: the residual blocks of each head.
        outputs: the output layer of each head; one that all share; or none, and then the target's
            own output head serves them all.
        dtype: of the activations.
        token_ids: see `Head.token_ids`.
    """

    name: str
    blocks: tuple[tuple[Product, ...], ...] = field(repr=False)
    outputs: tuple[Product, ...] = field(repr=False)
    dtype: torch.dtype
    token_ids: Tensor | None = field(default=None, repr=False)

    @property
    def drafter(self) -> str:
        """See `Head.drafter`."""
        return "medusa"

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `Head.needs`."""
        own: set[Need | Hidden] = {Hidden(final=True)}
        return frozenset(own if self.outputs else own | {Need.HEAD})

    @property
    def max_levels(self) -> int:
        """See `Head.max_levels`."""
        return len(self.blocks)

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        return sum(one.num_bytes for one in (*self.blocks[0], *self.outputs[:1]))

    def open(self, target: TargetView, capacity: int) -> OneShotState:
        """See `Head.open`."""
        return OneShotState(self, target)

    def score(self, work: Sequence[FinalRow]) -> list[Tensor]:
        """See `Head.score`."""
        return read_together(self._logits, work)

    def _logits(self, final: Tensor, levels: int, target: TargetView) -> Tensor:
        """See `one_shot.Read`."""
        states = [self._state(final.to(self.dtype), head) for head in range(levels)]
        if len(self.outputs) > 1:
            rows = [self.outputs[head](x) for head, x in enumerate(states)]
            return torch.stack(rows, dim=1)
        joined = torch.stack(states, dim=1).flatten(0, 1)  # one product for all levels
        if self.outputs:
            logits = self.outputs[0](joined)
        else:
            assert target.head is not None
            logits = target.head(joined.to(final.dtype))
        return logits.view(len(final), levels, -1)

    def _state(self, x: Tensor, head: int) -> Tensor:
        for block in self.blocks[head]:
            x = x + functional.silu(block(x))
        return x


def _made(files: HeadFiles, weights: Weights, options: HeadOptions) -> MedusaHead:
    """The head of checked weights.

    Raises:
        InvalidInput: its vocabulary is not the target's, or cannot be cut.
    """
    name = files.name
    dtype = options.dtype_for(weights.blocks[0][0][0] if weights.blocks[0] else weights.outputs[0])
    ids, target = weights.token_ids, options.target
    if ids is not None:
        ids = check_token_ids(name, ids, None if target is None else target.vocab_size)
    if options.token_ids is not None and not weights.outputs:
        raise InvalidInput(
            f"{files.path} uses the target's own output head, which cannot be cut for it; leave "
            "draft_head_tokens out"
        )
    kept = kept_outputs(files, ids, options)
    return MedusaHead(
        name,
        tuple(tuple(Product(w, b, options, dtype) for w, b in head) for head in weights.blocks),
        tuple(Product(kept.of(weight), None, options, dtype) for weight in weights.outputs),
        dtype,
        kept.token_ids,
    )


def read_weights(files: HeadFiles) -> Weights:
    """The weights in a file, under the names of either format.

    The number of heads and blocks is counted: the settings of published files do not give it right.

    Raises:
        ModelError: a tensor is missing, or has another shape.
    """
    is_vllm = any(_VLLM_BLOCK.fullmatch(key) for key in files.keys)
    block, output = (_VLLM_BLOCK, _VLLM_OUTPUT) if is_vllm else (_BLOCK, _OUTPUT)
    found = [match for key in files.keys if (match := block.fullmatch(key))]
    places = {(int(match[1]), int(match[2])): match[0] for match in found}
    ends = [match for key in files.keys if (match := output.fullmatch(key))]
    outputs = {int(match[1]): match[0] for match in ends}
    num_heads = 1 + max((head for head, _ in places), default=max(outputs, default=-1))
    num_blocks = 1 + max((number for _, number in places), default=-1)
    first = [*places.values(), *outputs.values()][0]
    hidden = files.take(first, (None, None)).shape[1]
    blocks = []
    for head in range(num_heads):
        own = []
        for number in range(num_blocks):
            key = places.get((head, number))
            if key is None:
                raise ModelError(
                    f"{files.path} lacks block {number} of head {head}, of {num_heads} heads with "
                    f"{num_blocks} blocks each; the file is incomplete"
                )
            bias = key.removesuffix("weight") + "bias"
            term = files.take(bias, (hidden,), why="its block") if files.has(bias) else None
            own.append((files.take(key, (hidden, hidden), why="its blocks"), term))
        blocks.append(own)
    ids = None
    if files.has("token_map"):
        ids = files.take("token_map", (None,))
    return Weights(blocks, _outputs(files, outputs, num_heads, hidden, ids), ids)


def _outputs(
    files: HeadFiles, keys: dict[int, str], num_heads: int, hidden: int, ids: Tensor | None
) -> list[Tensor]:
    """The output layers: of each head, of all, or none."""
    is_shared = bool(files.config.get("original_lm_head"))
    if is_shared and files.has("lm_head.weight"):
        keys = {0: "lm_head.weight"}
    wanted = min(len(keys), 1) if is_shared else num_heads
    found: list[Tensor] = []
    for head in range(wanted):
        if head not in keys:
            raise ModelError(
                f"{files.path} lacks the output layer of head {head} of {num_heads}; the file is "
                "incomplete"
            )
        weight = files.take(keys[head], (None, hidden), why="its blocks")
        if ids is not None and len(weight) > len(ids):
            weight = weight[ids.long()]
        rows = len(ids) if ids is not None else len(found[0]) if found else len(weight)
        if len(weight) != rows:
            raise ModelError(
                f"{files.path}: the output layer of head {head} has {len(weight):,} rows and "
                f"should have {rows:,}; the tensors do not belong together"
            )
        found.append(weight)
    files.leave(*(keys[head] for head in keys if head >= wanted))
    return found


def _recognises(files: HeadFiles) -> bool:
    if any(_BLOCK.fullmatch(key) or _VLLM_BLOCK.fullmatch(key) for key in files.keys):
        return True
    return "medusa_num_heads" in files.config


def _read(files: HeadFiles, options: HeadOptions) -> MedusaHead:
    if not any(
        pattern.fullmatch(key)
        for key in files.keys
        for pattern in (_BLOCK, _OUTPUT, _VLLM_BLOCK, _VLLM_OUTPUT)
    ):
        raise ModelError(
            f"{files.path} has no tensors of Medusa heads, such as '0.0.linear.weight', though its "
            "config.json names them; the file of weights is missing or another one"
        )
    weights = read_weights(files)
    files.refuse_leftovers("Medusa")
    hidden = (weights.blocks[0][0][0] if weights.blocks[0] else weights.outputs[0]).shape[-1]
    rows = len(weights.outputs[0]) if weights.outputs and weights.token_ids is None else None
    check_target(files, options.target, hidden_size=hidden, vocab_size=rows)
    if not weights.outputs and weights.token_ids is not None:
        raise InvalidInput(
            f"{files.path} names a vocabulary of {len(weights.token_ids):,} tokens and has no "
            "output layer for them; store the rows with the head"
        )
    return _made(files, weights, options)


FORMAT = HeadFormat("Medusa", always("medusa"), _recognises, _read)


def save_medusa(weights: Weights, folder: Path, *, base_model: str, vocab_size: int) -> list[Path]:
    """Write Medusa heads in Medusa's format: `medusa_lm_head.safetensors` and `config.json`.

    Heads with an output layer each and all tokens have the names of Medusa's repository. A shared
    output layer and a cut vocabulary, which that format does not know, have those of vLLM.

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
    tensors: dict[str, Tensor] = {}
    num_heads, num_blocks = len(weights.blocks), len(weights.blocks[0])
    is_shared = len(weights.outputs) < num_heads
    is_vllm = is_shared or weights.token_ids is not None
    for head, blocks in enumerate(weights.blocks):
        for number, (weight, bias) in enumerate(blocks):
            stem = f"blocks.{head}.layers.{number}" if is_vllm else f"{head}.{number}.linear"
            tensors[f"{stem}.weight"] = weight
            if bias is not None:
                tensors[f"{stem}.bias"] = bias
    for head, weight in enumerate(weights.outputs):
        tensors[f"lm_heads.{head}.weight" if is_vllm else f"{head}.{num_blocks}.weight"] = weight
    if weights.token_ids is not None:
        tensors["token_map"] = weights.token_ids.to(torch.int64)
    kept = vocab_size if weights.token_ids is None else len(weights.token_ids)
    config = {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "base_model_name_or_path": base_model,
        "medusa_num_heads": num_heads,
        "medusa_num_layers": num_blocks,
        "num_heads": num_heads,
        "num_hidden_layers": num_blocks,
        "hidden_size": weights.blocks[0][0][0].shape[0],
        "vocab_size": vocab_size,
        "truncated_vocab_size": kept,
        "original_lm_head": is_shared,
        "medusa_fc_bias": weights.blocks[0][0][1] is not None,
    }
    return write_files(folder, "medusa_lm_head.safetensors", tensors, config)
