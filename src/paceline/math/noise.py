"""Random decisions as an argument: keyed by seed, position and purpose, never a global state.

A rule does not ask for numbers but for decisions (accept with this probability, draw from this
law). A seeded noise answers with counter-based random numbers; an enumerating one (`law.py`)
answers with every outcome in turn, and so integrates a rule exactly.
"""

from __future__ import annotations

from collections import Counter
from enum import IntEnum
from typing import Protocol

import numpy as np
import torch
from torch import Tensor


class Purpose(IntEnum):
    """What a random number is for. Numbers for different purposes are independent."""

    DRAFT = 0
    ACCEPT = 1
    TARGET = 2
    RACE = 3


class Noise(Protocol):
    """The source of chance of one sequence. Positions are absolute, from the prompt's start."""

    def accept(self, probability: float, position: int) -> bool:
        """Decide once, with this probability, independently of every other decision."""
        ...

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """Draw a token from `law` (`[V]`, not negative, any positive sum), independently."""
        ...

    def race(self, law: Tensor, position: int) -> int:
        """Draw a token from `law` with noise that is *shared* by every race at the position.

        The token is argmin E_v / law(v) with exponential E_v keyed by (seed, position, v), so two
        models that race at one position tend to agree (coupling, Daliri et al. 2408.07978).
        """
        ...


class SeededNoise:
    """The noise of generation: Philox streams keyed by (seed, stream, position, purpose).

    The k-th decision for one position and purpose takes the k-th number of that key, so that no
    number ever serves two decisions: a position that is drafted again after a rejection draws
    anew. Only `race` repeats itself, on purpose.

    Args:
        seed: from 0 to 2**64 - 1.
        stream: which of several independent samples with one seed.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._key = np.array([seed, stream], dtype=np.uint64)
        self._used: Counter[tuple[int, int]] = Counter()

    def _generator(self, position: int, purpose: Purpose, repeat: int) -> np.random.Generator:
        # The lowest word is left to Philox, which counts in it; 2**64 numbers a key are enough.
        counter = np.array([0, repeat, position, int(purpose)], dtype=np.uint64)
        return np.random.Generator(np.random.Philox(key=self._key, counter=counter))

    def _uniform(self, position: int, purpose: Purpose) -> float:
        repeat = self._used[position, purpose]
        self._used[position, purpose] += 1
        return float(self._generator(position, purpose, repeat).random())

    def accept(self, probability: float, position: int) -> bool:
        """See `Noise.accept`. Certain outcomes use up no number."""
        if probability >= 1 or probability <= 0:
            return probability >= 1
        return self._uniform(position, Purpose.ACCEPT) < probability

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """See `Noise.sample`: inversion of the cumulative law, in float64."""
        peak, token = law.max(dim=-1)
        if peak == 1:  # a point mass, greedy decoding's only law
            return int(token)
        return invert(law, self._uniform(position, purpose))

    def race(self, law: Tensor, position: int) -> int:
        """See `Noise.race`. Token v sees the same number in vocabularies of every size."""
        noise = self._generator(position, Purpose.RACE, 0).standard_exponential(law.shape[-1])
        return race(law, torch.from_numpy(noise))


def invert(law: Tensor, uniform: float) -> int:
    """The token at which the cumulative `law` (`[V]`) passes the share `uniform` of its sum.

    >>> invert(torch.tensor([0.5, 0.0, 0.5]), 0.5)
    2
    """
    cumulative = law.to(torch.float64).cumsum(dim=-1)
    token = int(torch.searchsorted(cumulative, cumulative[-1] * uniform, right=True))
    # The product may round up to the whole sum; the last token with any mass is meant then.
    return token if token < law.shape[-1] else int(law.nonzero()[-1])


def race(law: Tensor, exponentials: Tensor) -> int:
    """The winner argmin E_v / law(v) of an exponential race; both arguments are `[V]`.

    >>> race(torch.tensor([0.9, 0.1]), torch.tensor([1.0, 1.0]))
    0
    """
    return int(torch.where(law > 0, exponentials / law.to(exponentials.dtype), torch.inf).argmin())
