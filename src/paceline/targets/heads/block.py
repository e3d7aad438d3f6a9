"""Heads that draft a block in one pass: DFlash, and DSpark with what it adds.

The states of the final tokens become keys and values of every layer of the head, once. The
last token and masks after it are the block; its rows see all of these and one another. So a draft
of any length takes one pass of the head's layers.

Sources: DFlash 2602.06036; DSpark 2607.05147.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.kernels.linear import Linear
from paceline.targets.attention import Pass, Segment
from paceline.targets.dense.layer import Layer, LayerMath
from paceline.targets.heads.inputs import TappedLayers
from paceline.targets.heads.network import Vocabulary, check_view
from paceline.targets.state.kv import KeyValueCache

READ_ROWS = 512
"""Final tokens wait for the next draft, up to this many: a head that is not asked costs little."""


class Chained(Protocol):
    """What a token of a block adds to the logits of the next (the sequential head of DSpark)."""

    @property
    def rank(self) -> int:
        """The width of its state."""
        ...

    def __call__(self, states: Tensor, tokens: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """What is added to the logits `[n, Vh]`, and the state `[n, rank]` of what follows.

        Args:
            states: `[n, hidden]`, the block's states before the output head.
            tokens: the n tokens before.
            before: `[n, rank]`, the states that go with them; zeros for the first.
        """
        ...


@dataclass(frozen=True, slots=True, eq=False)
class Markov:
    """W2 W1[x], or gated by the block's state (DSpark 3.1).

    Args:
        embedding: W1, `[V, rank]`.
        output: W2, `[Vh, rank]`.
        gate: from state and embedding side by side to a gate, `[rank, hidden + rank]`; None for
            none.
    """

    embedding: Tensor
    output: Linear
    gate: Linear | None = None

    @property
    def rank(self) -> int:
        """See `Chained`."""
        return self.embedding.shape[1]

    def __call__(self, states: Tensor, tokens: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """See `Chained`: nothing is carried on."""
        x = self.embedding[tokens].to(states.dtype)
        if self.gate is not None:
            x = self.gate(torch.cat([states, x], dim=-1)).sigmoid() * x
        return self.output(x), before


@dataclass(frozen=True, slots=True, eq=False)
class Recurrent:
    """A state s that goes from token to token (DSpark 3.1): g, c, o = W [s; W1[x]; h].

    s <- sigmoid(g) s + (1 - sigmoid(g)) tanh(c), and W2 tanh(o) is added.

    Args:
        embedding: W1, `[V, rank]`.
        output: W2, `[Vh, rank]`.
        joint: W, `[3 rank, 2 rank + hidden]`.
    """

    embedding: Tensor
    output: Linear
    joint: Linear

    @property
    def rank(self) -> int:
        """See `Chained`."""
        return self.embedding.shape[1]

    def __call__(self, states: Tensor, tokens: Tensor, before: Tensor) -> tuple[Tensor, Tensor]:
        """See `Chained`."""
        x = self.embedding[tokens].to(states.dtype)
        g, c, o = self.joint(torch.cat([before, x, states], dim=-1)).chunk(3, dim=-1)
        gate = g.sigmoid()
        return self.output(o.tanh()), gate * before + (1 - gate) * c.tanh()


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
        chained: what a drafted token adds to the logits of the next; None for nothing.
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
    chained: Chained | None = field(default=None, repr=False)

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

    def open(self, target: TargetView, capacity: int) -> BlockState:
        """See `contract.Head.open`."""
        check_view(self.name, self.needs, self.fuse.width, self.vocabulary, target)
        return BlockState(self, target, capacity)

    def write(self, hidden: HiddenStates, cache: KeyValueCache) -> None:
        """Keep keys and values of final rows, in every layer, after those that are kept."""
        math, length, rows = self.math, cache.length, hidden.num_rows
        context = math.norm(self.fuse(math, hidden), self.fused_norm)
        padded = math.pad(context)
        angles = math.angles(torch.arange(length, length + rows, device=math.device))
        cache.begin(length, length + rows)
        for number, layer in enumerate(self.layers):
            turned, values = math.heads(layer, padded, rows, angles)
            cache.write(number, turned[math.architecture.num_heads :], values, length)
        cache.keep(range(length, length + rows))

    def run(self, embedded: Tensor, cache: KeyValueCache) -> Tensor:
        """The states `[block, hidden]` before the output head, of rows after the final ones."""
        math, start, rows = self.math, cache.length, len(embedded)
        positions = torch.arange(start, start + rows, device=math.device)
        cache.begin(start, start + rows)
        seen = torch.ones(rows, rows, dtype=torch.bool)
        segment = Segment(cache, 0, rows, start, seen, start + rows)
        batch = Pass(positions, positions, [segment], positions[:0])
        angles, x = math.angles(positions), math.pad(embedded.to(math.device, math.dtype))
        for number, layer in enumerate(self.layers):
            assert layer.input_norm is not None
            inputs = math.norm(x, layer.input_norm)
            x = math.feed_forward(layer, math.attention(number, layer, inputs, x, batch, angles))
        states = math.norm(x[:rows], self.norm)
        return states if self.from_first else states[1:]


class BlockState:
    """See `drafting.heads.contract.HeadState`.

    Args:
        head: the weights.
        view: the target, on this sequence.
        capacity: the longest sequence, prompt and answer together.
    """

    def __init__(self, head: BlockHead, view: TargetView, capacity: int) -> None:
        self._head, self._cache = head, KeyValueCache(capacity)
        self._embed, self._logits = head.vocabulary.embed(view), head.vocabulary.logits(view)
        self._waiting: list[HiddenStates] = []
        self._num_waiting = 0
        self._last = 0
        self._states: Tensor | None = None

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        # A copy: the rows may be a view of all that a pass computed.
        self._waiting.append(hidden.rows(range(hidden.num_rows)))
        self._num_waiting += len(tokens)
        self._last, self._states = tokens[-1], None
        if self._num_waiting > READ_ROWS:
            self._read()

    def start(self, levels: int) -> Tensor:
        """See `contract.HeadState.start`."""
        head = self._head
        if self._num_waiting:
            self._read()
        if self._states is None:
            masks = [head.mask_token] * (head.block_size - 1)
            block = torch.tensor([self._last, *masks], device=head.math.device)
            self._states = head.run(self._embed(block), self._cache)
            self._base = self._logits(self._states)
        self._level = 0
        rank = 0 if head.chained is None else head.chained.rank
        self._carried = self._states.new_zeros(1, rank)
        return self._after([0], [self._last])

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `contract.HeadState.follow`."""
        self._level += 1
        return self._after(parents, tokens)

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._cache, self._states = KeyValueCache(0), None
        self._waiting.clear()

    def _read(self) -> None:
        self._head.write(HiddenStates.join(self._waiting), self._cache)
        self._waiting.clear()
        self._num_waiting = 0

    def _after(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """The logits of this level after some tokens of the level before."""
        count, chained = len(tokens), self._head.chained
        logits = self._base[self._level].expand(count, -1)
        if chained is None:
            return logits
        assert self._states is not None
        device = self._states.device
        states = self._states[self._level].expand(count, -1)
        before = self._carried[torch.tensor(parents, device=device)]
        added, self._carried = chained(states, torch.tensor(tokens, device=device), before)
        return logits + added
