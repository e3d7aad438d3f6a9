"""Blockwise heads: one feed-forward layer on the final state gives the states of the next tokens.

With x the final state of a token and n tokens to draft, whose block of k = n + 1 begins with the
token that the target itself says,

    [y_1 ... y_n] = U ReLU(W x + b) + c;   logits_i = R (x + y_i)

where y_i predicts the token i + 1 places after the one whose state was read, and R is the target's
own output layer. All n go through one product each for W and U. In the paper the target's own
prediction goes through the layer too, as the first of k; here the target stays as it is.

Sources: Stern et al. 1811.03115, sections 4 (one pass that verifies and proposes) and 6 (the
layer). Nobody else's files have a common form, so the format is Paceline's own.
"""

from __future__ import annotations

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
from paceline.errors import ModelError
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

_KIND = "blockwise"
_WIDE, _OUT, _ROWS, _IDS = (
    "multi_output.hidden",
    "multi_output.output",
    "lm_head.weight",
    "token_map",
)


class Weights(NamedTuple):
    """The weights of blockwise heads, as they are trained and stored.

    Args:
        hidden: W `[n * f, d]` and b `[n * f]`, with f the width of the layer for each token.
        output: U `[n * d, n * f]` and c `[n * d]`; rows i * d to (i + 1) * d are those of y_i.
        rows: output rows `[Vh, d]`; None takes the target's own.
        token_ids: `[Vh]`, the target's id of each row, ascending; None if all tokens are there.

    Example:
        >>> wide, out = (torch.ones(6, 2), torch.ones(6)), (torch.ones(4, 6), torch.ones(4))
        >>> Weights(wide, out).num_tokens
        2
    """

    hidden: tuple[Tensor, Tensor]
    output: tuple[Tensor, Tensor]
    rows: Tensor | None = None
    token_ids: Tensor | None = None

    @property
    def hidden_size(self) -> int:
        """d, the width of the target's states."""
        return self.hidden[0].shape[1]

    @property
    def num_tokens(self) -> int:
        """n, how many tokens are drafted."""
        return self.output[0].shape[0] // self.hidden_size


@dataclass(frozen=True, slots=True, eq=False)
class BlockwiseHead:
    """See `drafting.heads.contract.Head`.

    Args:
        name: for messages.
        hidden, output: the two products of the layer.
        num_tokens: n, how many tokens are drafted.
        dtype: of the activations.
        rows: the output layer; None takes the target's own.
        token_ids: see `Head.token_ids`.
    """

    name: str
    hidden: Product = field(repr=False)
    output: Product = field(repr=False)
    num_tokens: int
    dtype: torch.dtype
    rows: Product | None = field(default=None, repr=False)
    token_ids: Tensor | None = field(default=None, repr=False)

    @property
    def drafter(self) -> str:
        """See `Head.drafter`."""
        return _KIND

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `Head.needs`."""
        own: set[Need | Hidden] = {Hidden(final=True)}
        return frozenset(own | {Need.HEAD} if self.rows is None else own)

    @property
    def max_levels(self) -> int:
        """See `Head.max_levels`."""
        return self.num_tokens

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        rows = 0 if self.rows is None else self.rows.num_bytes
        return self.hidden.num_bytes + self.output.num_bytes + rows

    def open(self, target: TargetView, capacity: int) -> OneShotState:
        """See `Head.open`."""
        return OneShotState(self, target)

    def score(self, work: Sequence[FinalRow]) -> list[Tensor]:
        """See `Head.score`."""
        return read_together(self._logits, work)

    def _logits(self, final: Tensor, levels: int, target: TargetView) -> Tensor:
        """See `one_shot.Read`."""
        x = final.to(self.dtype)
        changes = self.output(functional.relu(self.hidden(x))).view(len(x), self.num_tokens, -1)
        states = (x[:, None] + changes[:, :levels]).flatten(0, 1)
        if self.rows is not None:
            logits = self.rows(states)
        else:
            assert target.head is not None
            logits = target.head(states.to(final.dtype))
        return logits.view(len(x), levels, -1)


def read_weights(files: HeadFiles) -> Weights:
    """The weights in a file.

    Raises:
        ModelError: a tensor is missing, or has another shape.
    """
    wide = files.take(f"{_WIDE}.weight", (None, None))
    width, hidden = wide.shape
    out = files.take(f"{_OUT}.weight", (None, width), why="its hidden layer")
    num_tokens = len(out) // hidden
    if not num_tokens or len(out) % hidden or width % num_tokens:
        raise ModelError(
            f"{files.path}: the layer goes from {hidden} by {width} to {len(out)} numbers, which "
            f"is no whole number of states of width {hidden}; the tensors do not belong together"
        )
    if files.number("block_size", num_tokens + 1) != num_tokens + 1:
        raise ModelError(
            f"{files.path}: block_size of its config.json is {files.config['block_size']}, and its "
            f"tensors are those of blocks of {num_tokens + 1}; the files do not belong together"
        )
    ids = files.take(_IDS, (None,)) if files.has(_IDS) else None
    rows = None
    if files.has(_ROWS) or ids is not None:
        rows = files.take(_ROWS, (None if ids is None else len(ids), hidden), why="its layer")
    return Weights(
        (wide, files.take(f"{_WIDE}.bias", (width,), why="its weight")),
        (out, files.take(f"{_OUT}.bias", (len(out),), why="its weight")),
        rows,
        ids,
    )


def _read(files: HeadFiles, options: HeadOptions) -> BlockwiseHead:
    weights, target = read_weights(files), options.target
    files.refuse_leftovers(_KIND)
    vocab = files.number("vocab_size") if "vocab_size" in files.config else None
    if weights.rows is not None and weights.token_ids is None:
        vocab = len(weights.rows)
    check_target(files, target, hidden_size=weights.hidden_size, vocab_size=vocab)
    ids = weights.token_ids
    if ids is not None:
        ids = check_token_ids(files.name, ids, None if target is None else target.vocab_size)
    if options.token_ids is not None and weights.rows is None:
        raise target_head_is_whole(str(files.path))
    kept = kept_outputs(files, ids, options)
    dtype = options.dtype_for(weights.hidden[0])
    return BlockwiseHead(
        files.name,
        Product(*weights.hidden, options, dtype),
        Product(*weights.output, options, dtype),
        weights.num_tokens,
        dtype,
        None if weights.rows is None else Product(kept.of(weights.rows), None, options, dtype),
        kept.token_ids,
    )


def _recognises(files: HeadFiles) -> bool:
    return files.config.get("model_type") == _KIND or files.has(f"{_WIDE}.weight")


FORMAT = HeadFormat(_KIND, always(_KIND), _recognises, _read)


def save_blockwise(
    weights: Weights, folder: Path, *, base_model: str, vocab_size: int
) -> list[Path]:
    """Write blockwise heads: `blockwise.safetensors` and `config.json`.

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
    tensors = {
        f"{_WIDE}.weight": weights.hidden[0],
        f"{_WIDE}.bias": weights.hidden[1],
        f"{_OUT}.weight": weights.output[0],
        f"{_OUT}.bias": weights.output[1],
    }
    if weights.rows is not None:
        tensors[_ROWS] = weights.rows
    if weights.token_ids is not None:
        tensors[_IDS] = weights.token_ids.to(torch.int64)
    config = {
        "model_type": _KIND,
        "base_model_name_or_path": base_model,
        "block_size": weights.num_tokens + 1,
        "hidden_size": weights.hidden_size,
        "intermediate_size": len(weights.hidden[0]) // weights.num_tokens,
        "vocab_size": vocab_size,
    }
    return write_files(folder, "blockwise.safetensors", tensors, config)
