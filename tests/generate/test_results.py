"""What an answer promises. The rest of it is tested through the door, in test_api.py."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import pytest

from paceline.core.protocols import Verifier
from paceline.core.sampling import SamplingParams
from paceline.core.target import TargetInfo
from paceline.generate.results import promise_of
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier

PLAIN, INVARIANT = TargetInfo("toy", 8), TargetInfo("toy", 8, invariant=True)
GREEDY, WARM = SamplingParams(), SamplingParams(temperature=0.7)


@dataclass(frozen=True)
class Lossy(TokenVerifier):
    exact: ClassVar[bool] = False


@pytest.mark.parametrize(
    ("rule", "params", "target", "promise"),
    [
        (TokenVerifier(), WARM, PLAIN, "law"),
        # The logits have the same bits, but the sample depends on the draft.
        (TokenVerifier(), WARM, INVARIANT, "law"),
        (TokenVerifier(), GREEDY, PLAIN, "law, path"),
        (TokenVerifier(), GREEDY, INVARIANT, "law, path, bits"),
        (CouplingVerifier(), WARM, PLAIN, "law, path"),
        (CouplingVerifier(), WARM, INVARIANT, "law, path, bits"),
        (CouplingVerifier(), GREEDY, PLAIN, "law, path"),
        (Lossy(), GREEDY, INVARIANT, "none"),
        (Lossy(), WARM, PLAIN, "none"),
    ],
)
def test_promises(rule: Verifier, params: SamplingParams, target: TargetInfo, promise: str) -> None:
    assert promise_of(rule, params, target) == promise
