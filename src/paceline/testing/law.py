"""The exact distribution of any random function, by enumeration: the oracle of tests and audit.

A function that takes its randomness from a `Noise` is run once for every possible sequence of
decisions, and the probabilities of the runs with the same outcome are added up. So what is checked
is the code itself, not a formula that should match it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable
from typing import TypeVar

import torch
from torch import Tensor

from paceline.core.protocols import Noise, Purpose
from paceline.errors import ContractViolation

Outcome = TypeVar("Outcome", bound=Hashable)


class EnumeratingNoise:
    """Follows a script of decisions, then takes the first possible outcome of each new one.

    Args:
        script: the index of the outcome to take, decision by decision.
    """

    def __init__(self, script: list[int]) -> None:
        self.script = list(script)
        self.options: list[int] = []
        """The number of outcomes of each decision."""
        self.probability = 1.0
        self._races: dict[int, tuple[Tensor, int]] = {}

    def _decide(self, outcomes: list[int], weights: list[float]) -> int:
        step = len(self.options)
        if step == len(self.script):
            self.script.append(0)
        self.options.append(len(outcomes))
        choice = self.script[step]
        if choice >= len(outcomes):
            raise ContractViolation(
                "the same decisions led to different runs: something takes randomness from "
                "outside the noise that it is given"
            )
        self.probability *= weights[choice] / sum(weights)
        return outcomes[choice]

    def accept(self, probability: float, position: int) -> bool:
        """See `Noise.accept`."""
        if probability <= 0 or probability >= 1:
            return probability >= 1
        return bool(self._decide([1, 0], [probability, 1 - probability]))

    def sample(self, law: Tensor, position: int, purpose: Purpose) -> int:
        """See `Noise.sample`."""
        tokens = law.nonzero().flatten().tolist()
        if not float(law.sum()) > 0:
            raise ContractViolation(
                f"a law must have a positive sum to draw from; it has {float(law.sum())}"
            )
        return self._decide(tokens, law[tokens].to(torch.float64).tolist())

    def race(self, law: Tensor, position: int) -> int:
        """See `Noise.race`. Races at one position share noise; here only with one distribution."""
        if position in self._races:
            before, token = self._races[position]
            if not torch.equal(before, law):
                raise ContractViolation("races with two laws at one position cannot be enumerated")
            return token
        token = self.sample(law, position, Purpose.RACE)
        self._races[position] = law.clone(), token
        return token


def output_law(
    run: Callable[[Noise], Outcome], *, max_runs: int = 1_000_000
) -> dict[Outcome, float]:
    """The exact distribution of `run(noise)`, in float64.

    Args:
        run: takes all its randomness from the noise; the same decisions give the same outcome.
        max_runs: a bound on the number of runs.

    Raises:
        ContractViolation: there are more runs than `max_runs`, or randomness from elsewhere.

    Example:
        >>> output_law(lambda noise: noise.accept(0.25, position=0))
        {True: 0.25, False: 0.75}
    """
    law: defaultdict[Outcome, float] = defaultdict(float)
    script: list[int] = []
    for _ in range(max_runs):
        noise = EnumeratingNoise(script)
        law[run(noise)] += noise.probability
        script = noise.script[: len(noise.options)]
        # The next script in the order of a counter whose digits have different bases.
        while script and script[-1] + 1 == noise.options[len(script) - 1]:
            script.pop()
        if not script:
            return dict(law)
        script[-1] += 1
    raise ContractViolation(f"the law has more than {max_runs} cases; use fewer tokens")
