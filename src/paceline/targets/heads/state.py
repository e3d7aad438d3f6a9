"""A head on one sequence: rows of final tokens, and of drafted ones after them.

The row of a final token is computed once, from the target's own states. Rows of drafted tokens
stand after them, and are forgotten when the next tokens become final: the target's states then take
the place of the head's guesses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.core.hidden import Hidden, HiddenStates
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.targets.attention import Pass, Segment
from paceline.targets.heads.model_layer import ModelLayerNetwork
from paceline.targets.heads.network import FeatureNetwork, check_view
from paceline.targets.state.kv import KeyValueCache

READ_ROWS = 512
"""Final tokens wait for the next draft, up to this many: a head that is not asked costs little."""


Network = FeatureNetwork | ModelLayerNetwork
"""A head's weights: its layers are the lean decoder's, or one of transformers'."""


class _Rows(NamedTuple):
    """Rows that went through the head, as what follows them needs them.

    Args:
        states: `[n, hidden]`, before the output head.
        fed: `[n, hidden]`, the features of rows that follow.
        paths: of each row the drafted rows that it sees, itself included.
    """

    states: Tensor
    fed: Tensor
    paths: list[list[int]]


class FeatureState:
    """See `drafting.heads.contract.HeadState`.

    Args:
        network: the head.
        view: the target, on this sequence.
        capacity: the longest sequence, prompt and answer together.
    """

    def __init__(self, network: Network, view: TargetView, capacity: int) -> None:
        check_view(network.name, network.needs, network.fuse.width, network.vocabulary, view)
        self._network = network
        self._embed, self._logits = network.vocabulary.embed(view), network.vocabulary.logits(view)
        self._cache = KeyValueCache(capacity)
        self._waiting: list[tuple[Sequence[int], Tensor]] = []
        self._num_waiting = 0
        self._last: _Rows | None = None
        self._level: _Rows | None = None
        self._num_drafted = 0

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        self._waiting.append((tokens, self._network.fuse(self._network.math, hidden)))
        self._num_waiting += len(tokens)
        if self._num_waiting > READ_ROWS:
            self._read()

    def start(self, levels: int) -> Tensor:
        """See `contract.HeadState.start`."""
        if self._num_waiting:
            self._read()
        assert self._last is not None
        self._level, self._num_drafted = self._last, 0
        return self._logits(self._last.states)

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `contract.HeadState.follow`."""
        above, first, length = self._level, self._num_drafted, self._cache.length
        assert above is not None
        rows = [*range(first, first + len(tokens))]
        paths = [[*above.paths[parent], row] for parent, row in zip(parents, rows, strict=True)]
        visible = torch.zeros(len(tokens), first + len(tokens), dtype=torch.bool)
        for row, path in enumerate(paths):
            visible[row, path] = True
        states, fed = self._pass(
            tokens,
            above.fed[torch.tensor(parents, device=above.fed.device)],
            [length + len(path) - 1 for path in paths],
            length + first,
            visible,
        )
        self._level, self._num_drafted = _Rows(states, fed, paths), first + len(tokens)
        return self._logits(states)

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._cache, self._last, self._level = KeyValueCache(0), None, None
        self._waiting.clear()

    def _read(self) -> None:
        """Run the final tokens that wait."""
        states, fed = self._run_waiting(0)
        self._last = _Rows(states[-1:].clone(), fed[-1:].clone(), [[]])

    def _run_waiting(self, masks: int) -> tuple[Tensor, Tensor]:
        """One pass over the final tokens that wait, which are kept, and unknown ones after them."""
        network, length = self._network, self._cache.length
        tokens = [token for part, _ in self._waiting for token in part]
        features = [part for _, part in self._waiting]
        if masks:
            assert network.mask_feature is not None
            features.append(network.mask_feature.expand(masks, -1))
        self._waiting.clear()
        self._num_waiting = 0
        end = length + len(tokens)
        out = self._pass(
            [*tokens, *[network.mask_token] * masks],
            torch.cat(features),
            range(length, end + masks),
            length,
        )
        self._cache.keep(range(length, end))
        return out

    def _pass(
        self,
        tokens: Sequence[int],
        features: Tensor,
        positions: Sequence[int],
        start: int,
        visible: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One pass over rows from `start` on, which see what is final and what `visible` says."""
        length, end, device = self._cache.length, start + len(tokens), self._network.math.device
        ids = torch.tensor(tokens, device=device)
        self._cache.begin(start, end)
        segment = Segment(self._cache, 0, len(tokens), start, visible, end, length)
        batch = Pass(ids, torch.tensor(positions, device=device), [segment], ids[:0])
        return self._network.run(self._embed(ids), features, batch)


class ParallelState(FeatureState):
    """Drafts all levels in one pass, by rows without a token after the final ones (P-EAGLE).

    Source: 2602.01469. A row sees the final tokens and the rows without a token before it.
    """

    def start(self, levels: int) -> Tensor:
        """See `contract.HeadState.start`."""
        known = self._last
        masks = levels - 1
        if self._num_waiting or masks:
            num_waiting = self._num_waiting
            states, fed = self._run_waiting(masks)
            if num_waiting:
                at = slice(num_waiting - 1, num_waiting)
                known = self._last = _Rows(states[at].clone(), fed[at].clone(), [[]])
            assert known is not None
            states = torch.cat([known.states, states[num_waiting:]])
        else:
            assert known is not None
            states = known.states
        self._all, self._number = self._logits(states), 0
        return self._all[:1]

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Tensor:
        """See `contract.HeadState.follow`: the next level does not depend on the tokens."""
        self._number += 1
        return self._all[self._number].expand(len(tokens), -1)


@dataclass(frozen=True, slots=True, eq=False)
class FeatureHead:
    """A network as a head; see `drafting.heads.contract.Head`.

    Args:
        network: its weights.
        drafter: see `contract.Head.drafter`.
        max_levels: see `contract.Head.max_levels`.
    """

    network: Network = field(repr=False)
    drafter: str
    max_levels: int | None = None

    @property
    def name(self) -> str:
        """See `contract.Head.name`."""
        return self.network.name

    @property
    def needs(self) -> frozenset[Need | Hidden]:
        """See `contract.Head.needs`."""
        return self.network.needs

    @property
    def token_ids(self) -> Tensor | None:
        """See `contract.Head.token_ids`."""
        return self.network.vocabulary.ids

    @property
    def num_bytes(self) -> int:
        """See `contract.Head.num_bytes`."""
        return self.network.num_bytes

    def open(self, target: TargetView, capacity: int) -> FeatureState:
        """See `contract.Head.open`."""
        parallel = self.network.mask_feature is not None
        return (ParallelState if parallel else FeatureState)(self.network, target, capacity)
