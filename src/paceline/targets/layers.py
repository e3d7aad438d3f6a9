"""A decoder layer by layer: passes in which some rows start at a later layer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from paceline.core.target import SkipSet, TargetInfo
from paceline.targets.attention import Pass, Segment


class LayeredDecoder(Protocol):
    """A `decoder.Decoder` whose layers can be run one by one, with or without their two parts."""

    @property
    def info(self) -> TargetInfo:
        """See `decoder.Decoder.info`; it gives `Need.LAYERS`."""
        ...

    @property
    def device(self) -> torch.device:
        """See `decoder.Decoder.device`."""
        ...

    @property
    def num_layers(self) -> int:
        """The number of layers."""
        ...

    def embed(self, tokens: Tensor) -> Tensor:
        """The states `[N, hidden]` that go into the first layer, padded."""
        ...

    def pad(self, x: Tensor) -> Tensor:
        """Append unused rows, if a pass with so few rows would be slower without them."""
        ...

    def angles(self, positions: Tensor) -> Any:
        """What the layers need of the positions `[N]`, in whatever form they use."""
        ...

    def layer(
        self,
        number: int,
        x: Tensor,
        batch: Pass,
        angles: Any,
        *,
        attention: bool = True,
        mlp: bool = True,
    ) -> Tensor:
        """One layer, or a part of it, on the states of the rows of `batch`, padded.

        `x` itself does not change. With attention, the rows' keys and values go into the caches.
        """
        ...

    def logits(self, x: Tensor) -> Tensor:
        """The logits `[n, V]` of states after the last layer."""
        ...


class Stage(NamedTuple):
    """The layers from `first` up to `end`, and the rows that go through them; None is all."""

    first: int
    end: int
    batch: Pass
    rows: Tensor | None


def run_layers(decoder: LayeredDecoder, batch: Pass) -> tuple[Tensor, dict[int, Tensor]]:
    """Run a pass through the layers; rows that are ahead enter at the layer where they stopped.

    (Self-speculative decoding of LayerSkip, Elhoushi et al. 2404.16710, section 4.3.)

    Returns:
        The states `[N, hidden]` after the last layer, and those that enter the layers that
        `batch.hidden` asks for. For a layer that rows ahead have been through already, those rows
        hold what enters the layer where they stopped.
    """
    rows = len(batch.tokens)
    asked = frozenset(() if batch.hidden is None else batch.hidden.layers)
    entering: dict[int, Tensor] = {}
    x = decoder.embed(batch.tokens)
    for segment in batch.segments:
        if segment.resume is not None:
            ahead = segment.resume.states
            x[segment.first : segment.first + len(ahead)] = ahead
    for stage in stages(batch, decoder.num_layers):
        angles = decoder.angles(stage.batch.positions)
        inside = x if stage.rows is None else decoder.pad(x[stage.rows])
        for number in range(stage.first, stage.end):
            if number in asked:
                entering[number] = _spread(x, inside, stage)[:rows]
            inside = decoder.layer(number, inside, stage.batch, angles)
        x = _spread(x, inside, stage)
    x = x[:rows]
    if decoder.num_layers in asked:
        entering[decoder.num_layers] = x
    return x, entering


def _spread(x: Tensor, inside: Tensor, stage: Stage) -> Tensor:
    """The states of all rows, with those of a stage where they belong."""
    if stage.rows is None:
        return inside
    return x.index_copy(0, stage.rows, inside[: len(stage.rows)])


def some_layers(decoder: LayeredDecoder, batch: Pass, skip: SkipSet) -> tuple[Tensor, Tensor]:
    """Run all rows through all but the skipped parts.

    Returns:
        The states `[N, hidden]` after the last layer, and those after the layers before the
        first skipped part.
    """
    x = decoder.embed(batch.tokens)
    angles = decoder.angles(batch.positions)
    whole = skip.num_whole(decoder.num_layers)
    kept = x
    for number in range(decoder.num_layers):
        attention, mlp = number not in skip.attention, number not in skip.mlp
        if attention or mlp:
            x = decoder.layer(number, x, batch, angles, attention=attention, mlp=mlp)
        if number < whole:
            kept = x
    return x[: len(batch.tokens)], kept[: len(batch.tokens)]


def stages(batch: Pass, num_layers: int) -> Iterator[Stage]:
    """Split a pass at the layers where rows that are ahead join it."""
    entries = sorted({s.resume.layer for s in batch.segments if s.resume is not None})
    for first, end in zip([0, *entries], [*entries, num_layers], strict=True):
        if first == end:
            continue
        rows: list[int] = []
        segments: list[Segment] = []
        for segment in batch.segments:
            ahead = 0
            if segment.resume is not None and segment.resume.layer > first:
                ahead = len(segment.resume.states)
            left = segment.rows - ahead
            if left:
                segments.append(
                    Segment(
                        segment.state,
                        len(rows),
                        left,
                        segment.start + ahead,
                        # Rows ahead are the first of a chain, so that what is left is one too.
                        None if ahead else segment.visible,
                        segment.end,
                        segment.seen,
                    )
                )
                rows += range(segment.first + ahead, segment.first + segment.rows)
        if len(rows) == len(batch.tokens):
            yield Stage(first, end, batch, None)
        elif rows:
            index = torch.tensor(rows, device=batch.tokens.device)
            inside = Pass(batch.tokens[index], batch.positions[index], segments, index[:0])
            yield Stage(first, end, inside, index)
