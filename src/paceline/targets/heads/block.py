"""Heads that draft a block in one pass: DFlash, and DSpark with what it adds.

The states of the final tokens become keys and values of every layer of the head, once. The
last token and masks after it are the block; its rows see all of these and one another. So a draft
of any length takes one pass of the head's layers.

Sources: DFlash 2602.06036; DSpark 2607.05147.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.passes import run
from paceline.core.protocols import Ask, Steps
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Level
from paceline.targets.attention import Pass, Segment
from paceline.targets.dense.layer import Layer, LayerMath
from paceline.targets.heads.inputs import TappedLayers
from paceline.targets.heads.network import Vocabulary, check_view
from paceline.targets.heads.tail import Tail, TailRows, TailSaid
from paceline.targets.state.kv import KeyValueCache

READ_ROWS = 512
"""Final tokens wait for the next draft, up to this many: a head that is not asked costs little."""


class BlockRows(NamedTuple):
    """What one sequence asks for: its new final rows, and perhaps a block after them.

    Args:
        hidden: the target's states of the new final rows; None if there are none.
        last: the last token, which the block begins with; None for no block.
        cache: the keys and values of its final rows.
        target: the target, which all sequences share.
    """

    hidden: HiddenStates | None
    last: int | None
    cache: KeyValueCache
    target: TargetView

    @property
    def end(self) -> int:
        """The number of final rows, the new ones included."""
        return self.cache.length + (0 if self.hidden is None else self.hidden.num_rows)


class Block(NamedTuple):
    """The states `[levels, hidden]` of a block before the output head, and their logits."""

    states: Tensor
    logits: Tensor


@dataclass(frozen=True, slots=True, eq=False)
class BlockHead:
    """The weights of a block head; see `drafting.heads.contract.Head`.

    Args:
        name: for messages.
        drafter: see `contract.Head.drafter`.
        math: what its layers compute.
        fuse: the target's states to one per token.
        fused_norm: the norm after that.
        layers: its layers.
        norm: before the output head.
        vocabulary: its tokens.
        mask_token: what stands for tokens that are not known yet.
        block_size: the rows of a block.
        from_first: whether the first row, that of the last token, predicts the next one; if not, a
            row predicts its own place, and the first is not used.
        tail: what a drafted token says of the next; None for nothing.
    """

    name: str
    drafter: str
    math: LayerMath = field(repr=False)
    fuse: TappedLayers = field(repr=False)
    fused_norm: Tensor = field(repr=False)
    layers: tuple[Layer, ...] = field(repr=False)
    norm: Tensor = field(repr=False)
    vocabulary: Vocabulary = field(repr=False)
    mask_token: int
    block_size: int
    from_first: bool
    tail: Tail | None = field(default=None, repr=False)

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `contract.Head.needs`."""
        return self.vocabulary.needs | {self.fuse.reads}

    @property
    def max_levels(self) -> int:
        """See `contract.Head.max_levels`."""
        return self.block_size if self.from_first else self.block_size - 1

    @property
    def token_ids(self) -> Tensor | None:
        """See `contract.Head.token_ids`."""
        return self.vocabulary.ids

    @property
    def num_bytes(self) -> int:
        """See `contract.Head.num_bytes`."""
        output = self.vocabulary.output
        layers = sum(layer.num_bytes for layer in self.layers)
        return layers + (0 if output is None else output.num_bytes)

    @property
    def num_cached_layers(self) -> int:
        """See `core.traits`."""
        return len(self.layers)

    def open(self, target: TargetView, capacity: int) -> BlockState:
        """See `contract.Head.open`."""
        check_view(self.name, self.needs, self.fuse.width, self.vocabulary, target)
        return BlockState(self, target, capacity)

    @torch.inference_mode()
    def score(self, work: Sequence[BlockRows]) -> list[Block | None]:
        """See `contract.Head.score`: keys and values of final rows are written, not kept."""
        self._write([one for one in work if one.hidden is not None])
        found = iter(self._run([one for one in work if one.last is not None]))
        return [None if one.last is None else next(found) for one in work]

    def _write(self, work: Sequence[BlockRows]) -> None:
        """Write keys and values of final rows, in every layer, after those that are kept."""
        if not work:
            return
        math = self.math
        hidden = HiddenStates.join([one.hidden for one in work if one.hidden is not None])
        context = math.norm(self.fuse(math, hidden), self.fused_norm)
        padded, rows = math.pad(context), hidden.num_rows
        sizes = [one.end - one.cache.length for one in work]
        for one in work:
            one.cache.begin(one.cache.length, one.end)
        angles = math.angles(_positions([(one.cache.length, one.end) for one in work], math.device))
        for number, layer in enumerate(self.layers):
            turned, values = math.heads(layer, padded, rows, angles)
            keys = turned[math.architecture.num_heads :]
            parts = zip(work, keys.split(sizes, dim=1), values.split(sizes, dim=1), strict=True)
            for one, own_keys, own_values in parts:
                one.cache.write(number, own_keys, own_values, one.cache.length)

    def _run(self, work: Sequence[BlockRows]) -> list[Block]:
        """The blocks that follow the final rows, each a pass over its own."""
        if not work:
            return []
        math, rows = self.math, self.block_size
        masks = [self.mask_token] * (rows - 1)
        tokens = [token for one in work for token in (one.last, *masks)]
        positions = _positions([(one.end, one.end + rows) for one in work], math.device)
        seen = torch.ones(rows, rows, dtype=torch.bool)
        segments = []
        for number, one in enumerate(work):
            one.cache.begin(one.end, one.end + rows)
            segments.append(Segment(one.cache, number * rows, rows, one.end, seen, one.end + rows))
        batch = Pass(positions, positions, segments, positions[:0])
        embed = self.vocabulary.embed(work[0].target)
        embedded = embed(torch.tensor(tokens, device=math.device)).to(math.device, math.dtype)
        angles, x = math.angles(positions), math.pad(embedded)
        for layer_number, layer in enumerate(self.layers):
            assert layer.input_norm is not None
            inputs = math.norm(x, layer.input_norm)
            x = math.attention(layer_number, layer, inputs, x, batch, angles)
            x = math.feed_forward(layer, x)
        states = math.norm(x[: len(tokens)], self.norm).view(len(work), rows, -1)
        states = states[:, rows - self.max_levels :]
        logits = self.vocabulary.logits(work[0].target)(states.flatten(0, 1))
        return [
            Block(*both) for both in zip(states, logits.view(*states.shape[:2], -1), strict=True)
        ]


def _positions(ranges: Sequence[tuple[int, int]], device: torch.device) -> Tensor:
    return torch.cat([torch.arange(*one, device=device) for one in ranges])


class BlockState:
    """See `drafting.heads.contract.HeadState`.

    Args:
        head: the weights.
        view: the target, on this sequence.
        capacity: the longest sequence, prompt and answer together.
    """

    def __init__(self, head: BlockHead, view: TargetView, capacity: int) -> None:
        self._head, self._view, self._cache = head, view, KeyValueCache(capacity)
        self._waiting: list[HiddenStates] = []
        self._num_waiting = 0
        self._last = 0
        self._block: Block | None = None

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        # A copy: the rows may be a view of all that a pass computed.
        self._waiting.append(hidden.copy())
        self._num_waiting += len(tokens)
        self._last, self._block = tokens[-1], None
        if self._num_waiting > READ_ROWS:
            run(self._read(None))

    def start(self, levels: int) -> Steps[Level]:
        """See `contract.HeadState.start`."""
        if self._block is None:
            self._block = yield from self._read(self._last)
        assert self._block is not None
        self._level = 0
        rank = 0 if self._head.tail is None else self._head.tail.rank
        self._carried = self._block.states.new_zeros(1, rank)
        return (yield from self._after([0], [self._last]))

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """See `contract.HeadState.follow`."""
        self._level += 1
        return (yield from self._after(parents, tokens))

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._cache, self._block = KeyValueCache(0), None
        self._waiting.clear()

    def _read(self, last: int | None) -> Steps[Block | None]:
        """Keep the final rows that wait, and run a block after them if there is a last token."""
        hidden = HiddenStates.join(self._waiting) if self._waiting else None
        self._waiting.clear()
        self._num_waiting = 0
        rows = BlockRows(hidden, last, self._cache, self._view)
        block: Block | None = yield Ask(self._head, rows)
        self._cache.keep(range(self._cache.length, rows.end))
        return block

    def _after(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """The logits of this level after some tokens of the level before."""
        block, count, tail = self._block, len(tokens), self._head.tail
        assert block is not None
        logits = block.logits[self._level].expand(count, -1)
        if tail is None:
            return Level(logits)
        device = block.states.device
        rows = TailRows(
            block.states[self._level].expand(count, -1),
            torch.tensor(tokens, device=device),
            self._carried[torch.tensor(parents, device=device)],
        )
        said: TailSaid = yield Ask(tail, rows)
        self._carried = said.carried
        return Level(logits if said.added is None else logits + said.added, said.acceptance)
