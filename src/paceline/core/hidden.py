"""The target's hidden states: which ones are requested, and the values returned.

States are named by the layer they *enter*: state i is the residual stream entering layer i. So 0 is
the output of the embedding, and the number of layers names the output of the last layer, before the
final norm. The state after the final norm, the input of the output head, is named `final`.
Checkpoints of trained heads count in different ways; the code that loads one converts to this
numbering.
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
    """Hidden states of every committed token: a drafter's request for them, or a target's offer.

    Args:
        layers: the layers whose inputs are wanted, numbered as in the module.
        final: whether the state after the final norm is wanted.

    Raises:
        InvalidInput: no state is named, or a layer is below 0.

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
                f"hidden states are counted from 0, the output of the embedding; got {layers[0]}"
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
        """The union of all hidden states among some needs; None if there are none.

        >>> Hidden.union({Hidden((1,)), Hidden((0,), final=True), "tree"})
        Hidden(layers=(0, 1), final=True)
        """
        asked = [need for need in needs if isinstance(need, Hidden)]
        if not asked:
            return None
        layers = {layer for one in asked for layer in one.layers}
        return cls(tuple(layers), any(one.final for one in asked))


class HiddenStates(NamedTuple):
    """Hidden states of some rows, on the model's device and in its dtype.

    Args:
        layers: the input of each layer, `[rows, hidden]`, by layer number.
        final: `[rows, hidden]` after the final norm; None if it was not requested.
    """

    layers: Mapping[int, Tensor]
    final: Tensor | None = None

    @property
    def num_rows(self) -> int:
        """The number of rows."""
        return len(next(iter((*self.layers.values(), *self._final))))

    def rows(self, index: slice | Sequence[int]) -> HiddenStates:
        """Some of the rows: a view for a slice, a copy for a list.

        >>> HiddenStates({0: torch.arange(6).view(3, 2)}).rows([2]).layers[0]
        tensor([[4, 5]])
        """
        at = index if isinstance(index, slice) else torch.tensor(index, dtype=torch.long)
        return HiddenStates(
            {layer: states[at] for layer, states in self.layers.items()},
            None if self.final is None else self.final[at],
        )

    def copy(self) -> HiddenStates:
        """The same rows in memory of their own.

        >>> states = HiddenStates({0: torch.ones(1, 2)})
        >>> states.copy().layers[0].data_ptr() == states.layers[0].data_ptr()
        False
        """
        layers = {layer: states.clone() for layer, states in self.layers.items()}
        return HiddenStates(layers, None if self.final is None else self.final.clone())

    def only(self, asked: Hidden) -> HiddenStates:
        """Only the states that `asked` names; there may be others, requested by another drafter."""
        return HiddenStates(
            {layer: self.layers[layer] for layer in asked.layers},
            self.final if asked.final else None,
        )

    @classmethod
    def join(cls, parts: Sequence[HiddenStates]) -> HiddenStates:
        """The rows of several results, concatenated in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(
            {layer: torch.cat([part.layers[layer] for part in parts]) for layer in parts[0].layers},
            None if parts[0].final is None else torch.cat([x for p in parts for x in p._final]),
        )

    @property
    def _final(self) -> tuple[Tensor, ...]:
        return () if self.final is None else (self.final,)
