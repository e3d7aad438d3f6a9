"""Random decisions as an argument: keyed by seed, position and purpose, without global state.

A rule asks not for numbers but for decisions (accept with this probability, draw from this
distribution). A seeded noise answers with counter-based random numbers. An enumerating one
(`testing/law.py`) answers with every outcome in turn, and so integrates a rule exactly.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation
from paceline.sampling.candidates import Blocks, in_blocks


class SeededNoise:
    """The noise of generation: Philox streams keyed by (seed, stream, position, purpose).

    The k-th decision for one position and purpose takes the k-th number of that key, so no number
    is ever used for two decisions: a position that is drafted again after a rejection gets new
    numbers. Only `race` repeats its numbers, on purpose.

    Args:
        seed: from 0 to 2**64 - 1.
        stream: which of several independent samples with one seed.
    """

    def __init__(self, seed: int, stream: int = 0) -> None:
        self._philox = np.random.Philox(key=np.array([seed, stream], dtype=np.uint64))
        self._state = self._philox.state
        self._used: Counter[tuple[int, int]] = Counter()

    def _bits(self, position: int, purpose: Purpose, repeat: int) -> int:
        # The lowest word is left to Philox, which counts in it. Setting the counter of a generator
        # is five times as fast as creating another.
        self._state["state"]["counter"][:] = 0, repeat, position, purpose
        self._philox.state = self._state
        return int(self._philox.random_raw())

    def _uniform(self, position: int, purpose: Purpose) -> float:
        repeat = self._used[position, purpose]
        self._used[position, purpose] += 1
        return (self._bits(position, purpose, repeat) >> 11) * 2.0**-53

    def accept(self, probability: float, position: int) -> bool:
        """See `Noise.accept`. Certain outcomes consume no number."""
        if probability >= 1 or probability <= 0:
            return probability >= 1
        return self._uniform(position, Purpose.ACCEPT) < probability

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """See `Noise.sample`: inversion of the cumulative distribution, in float64."""
        if _is_point_mass(law):
            return Blocks(law).argmax()
        return invert(law, self._uniform(position, purpose))

    def race(self, law: Tensor, position: int) -> int:
        """See `Noise.race`. Token v gets the same number whatever the vocabulary size."""
        if _is_point_mass(law):
            return Blocks(law).argmax()
        runners = np.flatnonzero(law.numpy() > 0)
        times = torch.from_numpy(exponentials(self._bits(position, Purpose.RACE, 0), runners))
        masses = law if len(runners) == len(law) else law[torch.from_numpy(runners)]
        return int(runners[race(masses, times)])


class CoupledNoise:
    """The noise of a drafter under a rule that couples: its draws become races.

    A drafter draws with `sample`, as under every rule; here the draw shares its noise with the
    target's at the same position, so that the two tend to agree.
    """

    def __init__(self, noise: Noise) -> None:
        self._noise = noise

    def accept(self, probability: float, position: int) -> bool:
        """See `Noise.accept`."""
        return self._noise.accept(probability, position)

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """Race, see `Noise.race`."""
        return self._noise.race(law, position)

    def race(self, law: Tensor, position: int) -> int:
        """See `Noise.race`."""
        return self._noise.race(law, position)


def _is_point_mass(law: Tensor) -> bool:
    """Whether one token has all the mass, as under greedy decoding, so that nothing is random."""
    return 0 < float(law.amax()) == float(law.sum())


def invert(law: Tensor, uniform: float) -> int:
    """The token at which the cumulative `law` (`[V]`) exceeds the share `uniform` of its sum.

    Sums in float64: first over blocks, then over the tokens of one block.

    Raises:
        ContractViolation: the law has no mass or contains NaN.

    >>> invert(torch.tensor([0.5, 0.0, 0.5]), 0.5)
    2
    """
    rows = in_blocks(law, fill=0.0)
    blocks = rows.sum(dim=-1, dtype=torch.float64).cumsum(dim=0)
    total = float(blocks[-1])
    if not total > 0:
        raise ContractViolation(f"a law must have a positive sum to draw from; it has {total}")
    block, rest = _passes(blocks, total * uniform)
    token, _ = _passes(rows[block].cumsum(dim=0, dtype=torch.float64), rest)
    return block * rows.shape[-1] + token


def _passes(cumulative: Tensor, point: float) -> tuple[int, float]:
    """Where `cumulative` first exceeds `point`, and how far `point` is above the sum before it."""
    place = int(torch.searchsorted(cumulative, point, right=True))
    if place == len(cumulative):
        # `point` was rounded up to the whole sum: take the last step up.
        place = int(torch.searchsorted(cumulative, float(cumulative[-1])))
    return place, point - (float(cumulative[place - 1]) if place else 0.0)


def race(law: Tensor, exponentials: Tensor) -> int:
    """The winner argmin E_v / law(v) of an exponential race; both arguments are `[V]`.

    >>> race(torch.tensor([0.9, 0.1]), torch.tensor([1.0, 1.0]))
    0
    """
    # Computed as the largest law(v) / E_v, so that tokens without mass need no special case.
    return Blocks(law.to(exponentials.dtype) / exponentials).argmax()


def exponentials(key: int, tokens: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
    """Standard exponential numbers, one per token, each a function of `key` and the token only.

    Token v gets the v-th number of SplitMix64 started at `key`, which can be computed without
    those before it (Steele, Lea and Flood 2014, figure 11).

    >>> bool((exponentials(7, np.arange(100))[[3, 99]] == exponentials(7, np.array([3, 99]))).all())
    True
    """
    z = (tokens.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    # The middles of 2**53 cells of (0, 1), so that no number is 0 or infinite.
    uniforms = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    return -np.log(uniforms)
