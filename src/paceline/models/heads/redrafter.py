"""ReDrafter: a recurrent network beside the target's final state, which takes in token by token.

With c the final state that was read, E the target's embedding, s_0 = 0 and t_i the token before
place i (t_1 is the last committed one), place i has

    s_i = SiLU(W E(t_i) + U s_{i-1} + b);   x = P [c; s_i] + b';   x = x + SiLU(R x + r) per block;
    logits_i = O x

A head without the recurrent weights adds up embeddings: s_i = E(t_i) + s_{i-1}. P is only there
where the width of the blocks is not that of [c; s_i].

Sources: Cheng et al. 2403.09919, section 3.1; the format is that of its repository, as
`save_pretrained` writes it.
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
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.drafting.heads.sequential import (
    LevelRows,
    SequentialState,
    Stepped,
    step_together,
)
from paceline.errors import ModelError
from paceline.models.heads.files import HeadFiles
from paceline.models.heads.format import (
    HeadFormat,
    HeadOptions,
    Product,
    always,
    check_target,
    kept_outputs,
)

_MODEL_TYPE = "recurrent_drafting_drafter"
_BLOCK = re.compile(r"lm_head\.(\d+)\.linear\.weight")
_OUTPUT = re.compile(r"lm_head\.(\d+)\.weight")


class Recurrence(NamedTuple):
    """The recurrent layer: (e, s) to SiLU(W e + U s + b)."""

    of_token: Product
    of_state: Product

    def __call__(self, embedded: Tensor, states: Tensor) -> Tensor:
        """Apply it to `[m, hidden]` twice."""
        return functional.silu(self.of_token(embedded) + self.of_state(states))


@dataclass(frozen=True, slots=True, eq=False)
class RedrafterHead:
    """See `drafting.heads.contract.Head`.

    Args:
        name: for messages.
        recurrence: the recurrent layer; None adds up embeddings.
        project: from `[c; s]` to the width of the blocks; None where that is its own.
        blocks: the residual blocks.
        output: the output layer.
        dtype: of the activations.
        token_ids: see `Head.token_ids`.
    """

    name: str
    recurrence: Recurrence | None = field(repr=False)
    project: Product | None = field(repr=False)
    blocks: tuple[Product, ...] = field(repr=False)
    output: Product = field(repr=False)
    dtype: torch.dtype
    token_ids: Tensor | None = field(default=None, repr=False)

    @property
    def drafter(self) -> str:
        """See `Head.drafter`."""
        return "redrafter"

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `Head.needs`."""
        return frozenset({Hidden(final=True), Need.EMBEDDING})

    @property
    def max_levels(self) -> None:
        """See `Head.max_levels`."""

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        optional = (*(self.recurrence or ()), self.project)
        products = (*(one for one in optional if one is not None), *self.blocks, self.output)
        return sum(one.num_bytes for one in products)

    def open(self, target: TargetView, capacity: int) -> SequentialState:
        """See `Head.open`."""
        return SequentialState(self, target)

    def score(self, work: Sequence[LevelRows]) -> list[Stepped]:
        """See `Head.score`."""
        return step_together(self._step, work)

    def _step(self, level: int, states: Tensor, tokens: Tensor, target: TargetView) -> Stepped:
        """See `sequential.Step`: rows carry `[c; s]`; before the first level there is only c."""
        assert target.embed is not None
        embedded, states = target.embed(tokens).to(self.dtype), states.to(self.dtype)
        context = states[:, : embedded.shape[1]]
        before = torch.zeros_like(context) if level == 0 else states[:, embedded.shape[1] :]
        mix = torch.add if self.recurrence is None else self.recurrence
        x = states = torch.cat([context, mix(embedded, before)], dim=1)
        if self.project is not None:
            x = self.project(x)
        for block in self.blocks:
            x = x + functional.silu(block(x))
        return Stepped(self.output(x), states)


def _read(files: HeadFiles, options: HeadOptions) -> RedrafterHead:
    ends = [key for key in files.keys if _OUTPUT.fullmatch(key)]
    places = [int(match[1]) for key in files.keys if (match := _BLOCK.fullmatch(key))]
    if len(ends) != 1:
        raise ModelError(
            f"{files.path} has {len(ends)} output layers, such as 'lm_head.2.weight', and a "
            "ReDrafter head has one; the file is incomplete, or of another kind"
        )
    num_blocks = files.number("num_draft_layers", max(places) + 1) if places else 0
    output = files.take(ends[0], (None, None))
    vocab, width = output.shape
    dtype = options.dtype_for(output)

    def product(stem: str, rows: int, columns: int, *, bias: bool = True) -> Product:
        why = "its config.json" if files.config else "its output layer"
        weight = files.take(f"{stem}.weight", (rows, columns), why=why)
        term = files.take(f"{stem}.bias", (rows,), why="its weight") if bias else None
        return Product(weight, term, options, dtype)

    project, inputs = None, width
    if files.has("input_proj.weight"):
        inputs = files.take("input_proj.weight", (width, None)).shape[1]
        project = product("input_proj", width, inputs)
    hidden = files.number("hidden_size", max(inputs // 2, 1))
    if inputs != 2 * hidden:
        raise ModelError(
            f"{files.path}: its first layer reads {inputs} numbers, and should read twice the "
            f"hidden size, which is {hidden}; the files do not belong together"
        )
    check_target(files, options.target, hidden_size=hidden, vocab_size=vocab)
    recurrence = None
    if files.config.get("rnn", files.has("rnn_u.weight")):
        recurrence = Recurrence(
            product("rnn_w", hidden, hidden, bias=False), product("rnn_u", hidden, hidden)
        )
    blocks = tuple(product(f"lm_head.{n}.linear", width, width) for n in range(num_blocks))
    files.refuse_leftovers("ReDrafter")
    kept = kept_outputs(files, None, options)
    end = Product(kept.of(output), None, options, dtype)
    return RedrafterHead(files.name, recurrence, project, blocks, end, dtype, kept.token_ids)


def _recognises(files: HeadFiles) -> bool:
    if files.config.get("model_type") == _MODEL_TYPE:
        return True
    return files.has("rnn_u.weight") and any(_OUTPUT.fullmatch(key) for key in files.keys)


FORMAT = HeadFormat("ReDrafter", always("redrafter"), _recognises, _read)
