"""MLPSpeculator: a state that starts as the target's final one and takes in each drafted token.

With n tokens to predict, w_s = 0.5^(0.5 / n) and w_e = sqrt((1 - w_s^2) d / 2), stage i, counted
from 0, computes from the state s before it and the token t before it

    s' = GELU(norm_i(P_i s + (w_e / w_s) E_i(t)));   logits = O_i s'

where the norm divides by the root mean square, then scales and shifts. With `scale_input` the first
state is divided by its root mean square and by the root of 2.

Sources: Wertheimer et al. 2404.19124, section 2; the format is that of fms-extras
("mlp_speculator"), which vLLM reads too.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

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

_EPSILON = 1e-6
"""Of the norms; the format does not store it."""

_PREFIX = "speculator."


@dataclass(frozen=True, slots=True, eq=False)
class Stage:
    """What predicts one token: its parts, which several stages may share."""

    project: Product
    embedding: Tensor
    scale: Tensor
    shift: Tensor
    output: Product


@dataclass(frozen=True, slots=True, eq=False)
class MlpHead:
    """See `drafting.heads.contract.Head`.

    Args:
        name: for messages.
        stages: one for each token that can be drafted.
        dtype: of the activations.
        scale_input: whether the first state is normed.
    """

    name: str
    stages: tuple[Stage, ...] = field(repr=False)
    dtype: torch.dtype
    scale_input: bool = False
    token_ids: Tensor | None = field(default=None, repr=False)

    @property
    def drafter(self) -> str:
        """See `Head.drafter`."""
        return "mlp"

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `Head.needs`."""
        return frozenset({Hidden(final=True)})

    @property
    def max_levels(self) -> int:
        """See `Head.max_levels`."""
        return len(self.stages)

    @property
    def num_bytes(self) -> int:
        """See `Head.num_bytes`."""
        return self.stages[0].project.num_bytes + self.stages[0].output.num_bytes

    def open(self, target: TargetView, capacity: int) -> SequentialState:
        """See `Head.open`."""
        return SequentialState(self, target)

    def score(self, work: Sequence[LevelRows]) -> list[Stepped]:
        """See `Head.score`."""
        return step_together(self._step, work)

    def _step(self, level: int, states: Tensor, tokens: Tensor, target: TargetView) -> Stepped:
        """See `sequential.Step`."""
        states = states.to(self.dtype)
        if level == 0 and self.scale_input:
            states = _normed(states) / math.sqrt(2)
        stage = self.stages[level]
        token_weight = _token_weight(len(self.stages), stage.project.out_features)
        mixed = stage.project(states) + token_weight * stage.embedding[tokens]
        states = functional.gelu(_normed(mixed) * stage.scale + stage.shift)
        return Stepped(stage.output(states), states)


def _token_weight(num_stages: int, inner: int) -> float:
    """The weight of an embedding beside a projected state: w_e / w_s.

    >>> round(_token_weight(1, 4), 6)
    1.414214
    """
    of_state: float = 0.5 ** (0.5 / num_stages)
    return math.sqrt((1 - of_state**2) * inner / 2) / of_state


def _normed(x: Tensor) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(wide.pow(2).mean(dim=-1, keepdim=True) + _EPSILON)).to(x.dtype)


def _read(files: HeadFiles, options: HeadOptions) -> MlpHead:
    num_stages, vocab = files.number("n_predict"), files.number("vocab_size")
    hidden = files.number("emb_dim")
    inner = files.number("inner_dim") if files.config.get("inner_dim") else hidden
    prefix = _PREFIX if any(key.startswith(_PREFIX) for key in files.keys) else ""
    tied = bool(files.config.get("tie_weights", False))
    check_target(files, options.target, hidden_size=hidden, vocab_size=vocab)
    why = "its config.json"
    first = files.take(f"{prefix}proj.0.weight", (inner, hidden), why=why)
    dtype = options.dtype_for(first)
    kept = kept_outputs(files, None, options)
    made: dict[str, Product] = {}
    vectors: dict[str, Tensor] = {}

    def key_of(part: str, number: int, end: str = "weight") -> str:
        """The tensor of a stage; of several that are one, the first may stand for all."""
        own = f"{prefix}{part}.{number}.{end}"
        if not tied:
            return own
        shared = f"{prefix}{part}.{min(number, 1) if part == 'proj' else 0}.{end}"
        files.leave(own)
        return shared

    def product(part: str, number: int, shape: tuple[int, int]) -> Product:
        key = key_of(part, number)
        if key not in made:
            weight = files.take(key, shape, why=why)
            if part == "head":
                weight = kept.of(weight)
            made[key] = Product(weight, None, options, dtype)
        return made[key]

    def vector(part: str, number: int, end: str, shape: tuple[int, ...]) -> Tensor:
        key = key_of(part, number, end)
        if key not in vectors:
            vectors[key] = files.take(key, shape, why=why).to(options.device, dtype)
        return vectors[key]

    stages = tuple(
        Stage(
            project=product("proj", number, (inner, hidden if number == 0 else inner)),
            embedding=vector("emb", number, "weight", (vocab, inner)),
            scale=vector("ln", number, "weight", (inner,)),
            shift=vector("ln", number, "bias", (inner,)),
            output=product("head", number, (vocab, inner)),
        )
        for number in range(num_stages)
    )
    files.refuse_leftovers("MLPSpeculator")
    if tied and num_stages < 2:
        raise ModelError(
            f"{files.path}: its config.json ties the weights of its stages, and there is only one; "
            "the file is damaged"
        )
    scale_input = bool(files.config.get("scale_input", False))
    return MlpHead(files.name, stages, dtype, scale_input, kept.token_ids)


def _recognises(files: HeadFiles) -> bool:
    return files.config.get("model_type") == "mlp_speculator"


FORMAT = HeadFormat("MLPSpeculator", always("mlp"), _recognises, _read)
