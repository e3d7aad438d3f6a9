"""The target's hidden states: which are asked for, and what comes of it.

States are named by the layer they *enter*: state i is the residual stream that enters layer i, so
that 0 is what the embedding gives, and the number of layers is what leaves the last layer, before
the final norm. The state after the final norm, which goes into the output head, has a name of its
own. Checkpoints of trained heads count in several ways; whoever loads one converts to this.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from paceline.errors import InvalidInput


@dataclass(frozen=True, slots=True)
class Hidden:
    """The need for hidden states of every committed token, and the offer of them.

    Args:
        layers: the layers whose entering states are wanted, see the module.
        final: whether the state after the final norm is wanted.

    Raises:
        InvalidInput: no state at all, or a layer below 0.

    Example:
        >>> Hidden((9, 2, 2)).layers
        (2, 9)
    """

    layers: tuple[int, ...] = ()
    final: bool = False

    def __post_init__(self) -> None:
        layers = tuple(sorted(set(self.layers)))
        object.__setattr__(self, "layers", layers)
        if not (layers or self.final):
            raise InvalidInput("Hidden names no state: give layers, or final=True")
        if layers and layers[0] < 0:
            raise InvalidInput(
                f"hidden states are counted from 0, what the embedding gives; got {layers[0]}"
            )

    def __str__(self) -> str:
        """In words.

        >>> str(Hidden((0, 1, 2, 5), final=True))
        'hidden states 0 to 2, 5, final'
        """
        runs: list[list[int]] = []
        for layer in self.layers:
            if runs and runs[-1][-1] == layer - 1:
                runs[-1].append(layer)
            else:
                runs.append([layer])
        parts = [
            f"{run[0]} to {run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs
        ]
        return f"hidden states {', '.join([*parts, *(['final'] if self.final else [])])}"

    def __le__(self, other: Hidden) -> bool:
        """Whether every state here is among those of `other`."""
        return set(self.layers) <= set(other.layers) and self.final <= other.final

    @classmethod
    def all(cls, num_layers: int) -> Hidden:
        """Every state of a model of this many layers.

        >>> Hidden.all(2)
        Hidden(layers=(0, 1, 2), final=True)
        """
        return cls(tuple(range(num_layers + 1)), final=True)

    @classmethod
    def union(cls, needs: Iterable[object]) -> Hidden | None:
        """All hidden states among some needs; None where there are none.

        >>> Hidden.union({Hidden((1,)), Hidden((0,), final=True), "tree"})
        Hidden(layers=(0, 1), final=True)
        """
        asked = [need for need in needs if isinstance(need, Hidden)]
        if not asked:
            return None
        layers = {layer for one in asked for layer in one.layers}
        return cls(tuple(layers), any(one.final for one in asked))


class HiddenStates(NamedTuple):
    """Hidden states of some rows, on the device and in the number format of the model.

    Args:
        layers: what enters a layer, `[rows, hidden]`, by the number of the layer.
        final: `[rows, hidden]` after the final norm; None where it was not asked for.
    """

    layers: Mapping[int, Tensor]
    final: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """How many rows there are."""
        return len(next(iter((*self.layers.values(), *self._final))))

    def rows(self, index: slice | Sequence[int]) -> HiddenStates:
        """Some of the rows: a view of a slice, a copy of a list.

        >>> HiddenStates({0: torch.arange(6).view(3, 2)}).rows([2]).layers[0]
        tensor([[4, 5]])
        """
        at = index if isinstance(index, slice) else torch.tensor(index, dtype=torch.long)
        return HiddenStates(
            {layer: states[at] for layer, states in self.layers.items()},
            None if self.final is None else self.final[at],
        )

    def only(self, asked: Hidden) -> HiddenStates:
        """The states that `asked` names; there may be others, that somebody else asked for."""
        return HiddenStates(
            {layer: self.layers[layer] for layer in asked.layers},
            self.final if asked.final else None,
        )

    @classmethod
    def join(cls, parts: Sequence[HiddenStates]) -> HiddenStates:
        """The same states of more rows, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            {layer: torch.cat([part.layers[layer] for part in parts]) for layer in parts[0].layers},
            None if parts[0].final is None else torch.cat([x for p in parts for x in p._final]),
        )

    @property
    def _final(self) -> tuple[Tensor, ...]:
        return () if self.final is None else (self.final,)
