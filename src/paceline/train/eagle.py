"""Which states of the target an EAGLE-3 head reads, and the weights of its training's steps.

The loss of step s is the divergence of its distribution from the target's at the place that it is
about (or the cross-entropy with the recorded token); the sum has weights .8^s (2503.01840, and the
settings of its repository).
"""

from __future__ import annotations

from paceline.core.hidden import Hidden

DECAY = 0.8
"""The weight of a step's loss, relative to the step before it."""


def taps_of(num_layers: int) -> tuple[int, ...]:
    """The layers whose inputs a head reads: 2, L // 2 and L - 3; first, middle and last of few.

    >>> taps_of(30), taps_of(2)
    ((2, 15, 27), (0, 1, 2))
    """
    usual = 2, num_layers // 2, num_layers - 3
    rising = usual[0] < usual[1] < usual[2]
    return usual if rising else tuple(sorted({0, num_layers // 2, num_layers}))


def hidden_of(num_layers: int) -> Hidden:
    """The states that a head learns from: those it reads, and the last, for the target's law."""
    return Hidden(taps_of(num_layers), final=True)


def decaying(num_steps: int) -> tuple[float, ...]:
    """The weights of the steps' losses.

    >>> decaying(3)
    (1.0, 0.8, 0.6400000000000001)
    """
    return tuple(DECAY**step for step in range(num_steps))
