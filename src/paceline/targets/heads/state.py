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
from paceline.core.passes import done, run
from paceline.core.protocols import Ask, Scorer, Steps
from paceline.core.target import Need
from paceline.core.view import TargetView
from paceline.drafting.heads.contract import Level
from paceline.targets.attention import Pass, Segment
from paceline.targets.heads.model_layer import ModelLayerNetwork
from paceline.targets.heads.network import FeatureNetwork, check_view
from paceline.targets.state.kv import KeyValueCache

READ_ROWS = 512
"""Final tokens wait for the next draft, up to this many: a head that is not asked costs little."""


Network = FeatureNetwork | ModelLayerNetwork
"""A head's weights: its layers are the lean decoder's, or one of transformers'."""


class Rows(NamedTuple):
    """One sequence's rows in a pass of the head: those of final tokens first, then others.

    Args:
        tokens: the token of each row.
        hidden: the target's states of the first rows, to be fused; None for none.
        features: `[n, hidden]`, the features of the other rows.
        positions: of each row.
        cache: the keys and values of the sequence, whose end they stand after.
        start: the row of the cache at which they are written.
        visible: see `attention.Segment`.
        num_said: how many rows, the last ones, are to say what follows them.
        target: the target, which all sequences share.
    """

    tokens: Sequence[int]
    hidden: HiddenStates | None
    features: Sequence[Tensor]
    positions: Sequence[int]
    cache: KeyValueCache
    start: int
    visible: Tensor | None
    num_said: int
    target: TargetView


class Said(NamedTuple):
    """What a pass gave for the rows of a sequence that say something.

    Args:
        logits: `[n, Vh]`.
        fed: `[n, hidden]`, the features of rows that follow.
    """

    logits: Tensor
    fed: Tensor


class _Level(NamedTuple):
    """The last level, and of each of its rows the drafted rows that it sees, itself included."""

    said: Said
    paths: list[list[int]]


@torch.inference_mode()
def run_together(network: Network, work: Sequence[Rows]) -> list[Said]:
    """One pass of the head over the rows of several sequences."""
    device = network.math.device
    given = [one.hidden for one in work if one.hidden is not None]
    fused: list[Tensor] = []
    if given:
        sizes = [states.num_rows for states in given]
        fused = [*network.fuse(network.math, HiddenStates.join(given)).split(sizes)]
    features: list[Tensor] = []
    segments: list[Segment] = []
    said: list[slice] = []
    first = 0
    for one in work:
        if one.hidden is not None:
            features.append(fused.pop(0))
        features += one.features
        rows = len(one.tokens)
        end = one.start + rows
        one.cache.begin(one.start, end)
        seen = one.cache.length
        segments.append(Segment(one.cache, first, rows, one.start, one.visible, end, seen))
        first += rows
        said.append(slice(first - one.num_said, first))
    tokens = torch.tensor([token for one in work for token in one.tokens], device=device)
    positions = torch.tensor([place for one in work for place in one.positions], device=device)
    vocabulary, target = network.vocabulary, work[0].target
    batch = Pass(tokens, positions, segments, tokens[:0])
    states, fed = network.run(vocabulary.embed(target)(tokens), _joined(features), batch)
    logits = vocabulary.logits(target)(_joined([states[rows] for rows in said]))
    parts = zip(logits.split([one.num_said for one in work]), said, strict=True)
    return [Said(own, fed[rows]) for own, rows in parts]


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """The rows of several tensors; those of one as they are."""
    return parts[0] if len(parts) == 1 else torch.cat([*parts])


class FeatureState:
    """See `drafting.heads.contract.HeadState`.

    Args:
        head: who runs `Rows`, by `run_together`.
        network: its weights.
        view: the target, on this sequence.
        capacity: the longest sequence, prompt and answer together.
    """

    def __init__(self, head: Scorer, network: Network, view: TargetView, capacity: int) -> None:
        check_view(network.name, network.needs, network.fuse.width, network.vocabulary, view)
        self._head, self._network, self._view = head, network, view
        self._cache = KeyValueCache(capacity)
        self._waiting: list[tuple[Sequence[int], HiddenStates]] = []
        self._num_waiting = 0
        self._last: Said | None = None
        self._level: _Level | None = None
        self._num_drafted = 0

    def observe(self, hidden: HiddenStates, tokens: Sequence[int]) -> None:
        """See `contract.HeadState.observe`."""
        # A copy: the rows may be a view of all that a pass computed.
        self._waiting.append((tokens, hidden.copy()))
        self._num_waiting += len(tokens)
        if self._num_waiting > READ_ROWS:
            run(self._read())

    def start(self, levels: int) -> Steps[Level]:
        """See `contract.HeadState.start`."""
        last = (yield from self._read()) if self._num_waiting else self._last
        assert last is not None
        self._level, self._num_drafted = _Level(last, [[]]), 0
        return Level(last.logits)

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """See `contract.HeadState.follow`."""
        above, first, length = self._level, self._num_drafted, self._cache.length
        assert above is not None
        rows = [*range(first, first + len(tokens))]
        paths = [[*above.paths[parent], row] for parent, row in zip(parents, rows, strict=True)]
        visible = torch.zeros(len(tokens), first + len(tokens), dtype=torch.bool)
        for row, path in enumerate(paths):
            visible[row, path] = True
        fed = above.said.fed
        said: Said = yield self._ask(
            tokens,
            None,
            [fed[torch.tensor(parents, device=fed.device)]],
            [length + len(path) - 1 for path in paths],
            length + first,
            visible,
            len(tokens),
        )
        self._level, self._num_drafted = _Level(said, paths), first + len(tokens)
        return Level(said.logits)

    def close(self) -> None:
        """See `contract.HeadState.close`."""
        self._cache, self._last, self._level = KeyValueCache(0), None, None
        self._waiting.clear()

    def _read(self) -> Steps[Said]:
        """Run the final tokens that wait; what the last of them says."""
        said = yield from self._run_waiting(0)
        return self._keep(said, 0)

    def _run_waiting(self, masks: int) -> Steps[Said]:
        """One pass over the final tokens that wait, which are kept, and unknown ones after them."""
        network, length = self._network, self._cache.length
        tokens = [token for part, _ in self._waiting for token in part]
        given = [part for _, part in self._waiting]
        self._waiting.clear()
        self._num_waiting = 0
        unknown: list[Tensor] = []
        if masks:
            assert network.mask_feature is not None
            unknown = [network.mask_feature.expand(masks, -1)]
        end = length + len(tokens)
        said: Said = yield self._ask(
            [*tokens, *[network.mask_token] * masks],
            HiddenStates.join(given) if given else None,
            unknown,
            range(length, end + masks),
            length,
            None,
            masks + bool(tokens),
        )
        self._cache.keep(range(length, end))
        return said

    def _keep(self, said: Said, row: int) -> Said:
        """Remember what the last final token says; a copy, since the rest is not needed."""
        at = slice(row, row + 1)
        self._last = Said(said.logits[at].clone(), said.fed[at].clone())
        return self._last

    def _ask(
        self,
        tokens: Sequence[int],
        hidden: HiddenStates | None,
        features: Sequence[Tensor],
        positions: Sequence[int],
        start: int,
        visible: Tensor | None,
        num_said: int,
    ) -> Ask:
        """A pass over rows from `start` on, which see what is final and what `visible` says."""
        cache, target = self._cache, self._view
        rows = Rows(tokens, hidden, features, positions, cache, start, visible, num_said, target)
        return Ask(self._head, rows)


class ParallelState(FeatureState):
    """Drafts all levels in one pass, by rows without a token after the final ones (P-EAGLE).

    Source: 2602.01469. A row sees the final tokens and the rows without a token before it.
    """

    def start(self, levels: int) -> Steps[Level]:
        """See `contract.HeadState.start`."""
        known, masks = self._last, levels - 1
        has_new = self._num_waiting > 0
        logits = [] if known is None or has_new else [known.logits]
        if has_new or masks:
            said = yield from self._run_waiting(masks)
            logits.append(said.logits)
            if has_new:
                self._keep(said, 0)
        self._all, self._number = torch.cat(logits), 0
        return Level(self._all[:1])

    def follow(self, parents: Sequence[int], tokens: Sequence[int]) -> Steps[Level]:
        """See `contract.HeadState.follow`: the next level does not depend on the tokens."""
        self._number += 1
        return done(Level(self._all[self._number].expand(len(tokens), -1)))


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

    @property
    def num_cached_layers(self) -> int:
        """See `core.traits`."""
        return self.network.num_cached_layers

    def open(self, target: TargetView, capacity: int) -> FeatureState:
        """See `contract.Head.open`."""
        kind = FeatureState if self.network.mask_feature is None else ParallelState
        return kind(self, self.network, target, capacity)

    def score(self, work: Sequence[Rows]) -> list[Said]:
        """See `contract.Head.score`."""
        return run_together(self.network, work)
