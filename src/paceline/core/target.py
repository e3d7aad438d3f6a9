"""What a target reports about itself, and what it passes to a drafter: frozen values.

Notation: V is the vocabulary size, n the number of drafted nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from torch import Tensor

from paceline.core.drafts import Draft
from paceline.core.hidden import Hidden, HiddenStates


class Need(StrEnum):
    """What a drafter may need beyond tokens and `Hidden`; see `TargetInfo.gives`."""

    LOGITS = "logits"
    """The target's logits of every row that a round scored, including rejected ones."""
    TREE = "tree"
    """Drafts that branch (trees)."""
    AUXILIARY = "auxiliary"
    """Rows that are scored with a draft but can never be accepted; see `Auxiliary`."""
    LAYERS = "layers"
    """The target's own layers on the cache of the sequence; see `view.TargetLayers`."""
    EMBEDDING = "embedding"
    """The target's input embedding; see `view.TargetView`."""
    HEAD = "head"
    """The target's output head; see `view.TargetView`."""


@dataclass(frozen=True, slots=True)
class SkipSet:
    """Which parts of the target's layers a draft skips, counted from 0.

    Args:
        attention: the layers whose attention is skipped.
        mlp: the layers whose feed-forward part is skipped.

    Example:
        >>> SkipSet(frozenset({2}), frozenset({1, 2})).num_whole(4)
        1
    """

    attention: frozenset[int] = frozenset()
    mlp: frozenset[int] = frozenset()

    @classmethod
    def after(cls, layer: int, num_layers: int) -> SkipSet:
        """All but the first `layer` layers.

        >>> SkipSet.after(1, 3).mlp == frozenset({1, 2})
        True
        """
        rest = frozenset(range(layer, num_layers))
        return cls(rest, rest)

    def num_whole(self, num_layers: int) -> int:
        """The number of layers before the first one that is skipped in part or whole."""
        return min(self.attention | self.mlp, default=num_layers)

    def num_sublayers(self, num_layers: int) -> int:
        """The number of attention and feed-forward parts that are left."""
        return 2 * num_layers - len(self.attention) - len(self.mlp)


@dataclass(frozen=True, slots=True, eq=False)
class Scores:
    """The target's result for one root and its draft.

    Args:
        logits: `[1 + n + m, V]`, float32 (float64 in tests), on the CPU, where the rules run; row 0
            follows the root, row i + 1 follows draft node i, then come the m auxiliary rows.
            `[0, V]` if no logits were requested.
        hidden: the hidden states requested, with one row for each committed token of the work (the
            last is the root), each draft node and each auxiliary row.
    """

    logits: Tensor
    hidden: HiddenStates | None = None


@dataclass(frozen=True, slots=True)
class TargetInfo:
    """What a drafter may know about the target.

    Args:
        name: for messages and reports.
        vocab_size: the number of logits in a row.
        max_length: the longest sequence, prompt and answer together, in tokens; None if there is no
            limit.
        max_draft_tokens: the maximum number of draft tokens in one pass; None if any number fits.
        gives: what it can give a drafter beyond tokens: `Need`s, and the `Hidden` states that it
            has.
        invariant: whether the logits of a committed token are bit-identical whatever was drafted
            (invariant mode).
        row_costs: the time of a pass by its number of rows, in units of a pass over one row, as far
            as it is known in advance; empty if nothing is known.
        num_weights: the number of weights in the layers, which every prompt token goes through: the
            cost of reading a prompt relative to another model. 0 if unknown.
        hidden_size: the width of its hidden states. 0 if unknown.
        mask_token: the token that stands for one not known yet, for models that were trained to
            guess several tokens in one pass (PARD); None for the others.
    """

    name: str
    vocab_size: int
    max_length: int | None = None
    max_draft_tokens: int | None = None
    gives: frozenset[Need | Hidden] = frozenset()
    invariant: bool = False
    row_costs: Mapping[int, float] = field(default_factory=dict, repr=False, compare=False)
    num_weights: int = field(default=0, repr=False, compare=False)
    hidden_size: int = field(default=0, repr=False, compare=False)
    mask_token: int | None = field(default=None, repr=False, compare=False)

    @property
    def num_layers(self) -> int:
        """The layers of the target, as far as it offers their `Hidden` states; 0 if unknown.

        >>> TargetInfo("toy", 8, gives=frozenset({Hidden((0, 1, 2))})).num_layers
        2
        """
        has = Hidden.union(self.gives)
        return max(has.layers, default=0) if has is not None else 0

    def lacks(self, needs: Iterable[Need | Hidden]) -> list[str]:
        """Those of some needs that it does not give, in words.

        >>> info = TargetInfo("toy", 8, gives=frozenset({Need.LOGITS, Hidden((0, 1))}))
        >>> info.lacks({Need.LOGITS, Need.TREE, Hidden((0,)), Hidden((2,))})
        ['hidden states 2', 'tree']
        """
        has = Hidden.union(self.gives)
        return sorted(
            str(need)
            for need in needs
            if need not in self.gives
            and not (isinstance(need, Hidden) and has is not None and need <= has)
        )


class Opening(NamedTuple):
    """What is known about a sequence when it starts, for its controller.

    Args:
        num_prompt_tokens: the length of the prompt.
        max_tokens: the maximum length of the answer in tokens; None if unknown.
        min_tokens: its minimum length.
        target: what the target reports about itself; None if there is no target.
    """

    num_prompt_tokens: int = 0
    max_tokens: int | None = None
    min_tokens: int = 0
    target: TargetInfo | None = None


class Committed(NamedTuple):
    """What became final: the prompt first, then the tokens of each round, in order.

    Args:
        tokens: the new final tokens.
        draft: what was scored in the round; None for the prompt, and if it is not needed.
        path: the accepted nodes of `draft` that were kept.
        logits: the target's own `[draft.num_rows, V]`, laid out as in `Scores`; for drafters that
            need `Need.LOGITS`, None for the others.
        hidden: for drafters that need `Hidden`, None for the others. No pass has seen the last of
            `tokens` yet, so the last row belongs to the token *before* it, and the other rows to
            the tokens before that: each row is aligned with the token that followed it. There is a
            row for every token except the very first, which follows none. A long prompt is then
            reported in parts, each with its states, and at most one part is in memory at a time.
    """

    tokens: tuple[int, ...]
    draft: Draft | None = None
    path: tuple[int, ...] = ()
    logits: Tensor | None = None
    hidden: HiddenStates | None = None
