"""The exact law: every planted fault shows on the scripted targets, and no right rule does."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import pytest
import torch

from paceline.controllers.fixed import FixedController
from paceline.core.drafts import Budget, Draft, Outcome
from paceline.core.passes import drive
from paceline.core.protocols import Noise, Steps, Warp
from paceline.core.sampling import SamplingParams
from paceline.core.target import Committed, Opening
from paceline.core.view import TargetView
from paceline.drafters.model import ModelDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafting.heads.drafter import HeadDrafter, HeadSession
from paceline.errors import InvalidInput
from paceline.generate import plugins
from paceline.testing.heads import TableHead
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.verifiers.tree import TreeVerifier
from paceline.workbench.audit.laws import check_law
from paceline.workbench.audit.scripts import Parts, Script, ScriptedTimes, in_front_of, scripts
from paceline.workbench.audit.verdicts import Verdict
from tests.rigged import Line
from tests.workbench.audit.planted import FAULTS, RIGHT

WARM = [SamplingParams(temperature=1.0)]
HALF = TableTarget(torch.tensor([0.5, 0.5], dtype=torch.float64))


@pytest.mark.parametrize("name", FAULTS)
def test_every_planted_fault_is_found(name: str) -> None:
    finding = check_law(FAULTS[name], WARM, max_runs=400)
    assert finding.verdict is Verdict.FAULT, finding.summary
    assert finding.summary.startswith("The distribution differs from plain decoding")


@pytest.mark.parametrize("name", RIGHT)
def test_right_rules_pass(name: str) -> None:
    finding = check_law(RIGHT[name], WARM, max_runs=400)
    assert finding.verdict is Verdict.PASS
    assert all(row["total_variation"] < 1e-12 for row in finding.evidence)
    assert sum(row["accepted"] for row in finding.evidence) > 0
    assert sum(row["rejected"] for row in finding.evidence) > 0


HEAD = TableHead(HALF, "lying")


@dataclass(frozen=True, slots=True)
class LyingDrafter(HeadDrafter):
    """Draws from one law and names another: the head's, without the sampling options."""

    name: ClassVar[str] = "lying"

    honest: bool = False

    def open(self, target: TargetView, capacity: int) -> Any:
        session = HeadSession(self, target, capacity)
        return session if self.honest else Liar(session)


class Liar:
    def __init__(self, session: HeadSession) -> None:
        self._session = session
        self.observe, self.close = session.observe, session.close

    def propose(self, budget: Budget, warp: Warp, noise: Noise) -> Steps[Draft]:
        draft = yield from self._session.propose(budget, warp, noise)
        named = None if draft.probs is None else tuple(_flat(law) for law in draft.probs)
        return replace(draft, probs=named)


def _flat(law: torch.Tensor | None) -> torch.Tensor | None:
    """Half-way to the uniform law."""
    return None if law is None else 0.5 * law + 0.5 / len(law)


@pytest.mark.parametrize("settings", [{"shape": "chain"}, {"max_nodes": 3, "top_k": 2}], ids=str)
@pytest.mark.parametrize("honest", [True, False])
def test_a_head_whose_q_is_not_what_drew_is_found(honest: bool, settings: dict[str, Any]) -> None:
    """Its own weights are replaced by scripted ones, as a draft model's are."""
    drafter = LyingDrafter(HEAD, honest=honest, **settings)
    rule = TokenVerifier() if drafter.is_chain else TreeVerifier()
    finding = check_law(Parts(drafter, rule, FixedController(2)), WARM, max_runs=400)
    assert finding.verdict is (Verdict.PASS if honest else Verdict.FAULT), finding.summary
    assert sum(row["accepted"] for row in finding.evidence) > 0


def test_a_worked_fault_has_its_known_distance() -> None:
    """With p = (.3, .4, .3), q = (.6, .3, .1) the correction from p gives (.39, .42, .19)."""
    p, q = ([0.3, 0.4, 0.3], [0.6, 0.3, 0.1])
    script = Script("A", _table(p), _table(q), ((0,),))
    finding = check_law(FAULTS["the correction drawn from p"], WARM, on=[script], max_runs=30)
    (row,) = finding.evidence
    assert row["answer_tokens"] == 2
    assert row["total_variation"] == pytest.approx(0.11)


@pytest.mark.parametrize("verifier", plugins.names("verifier"))
def test_registered_rules_are_as_exact_as_they_say(verifier: str) -> None:
    rule = plugins.find("verifier", verifier).make({})
    finding = check_law(Parts(ModelDrafter(HALF), rule, FixedController(2)), WARM, max_runs=400)
    assert finding.verdict is (Verdict.PASS if rule.exact else Verdict.FAULT), finding.summary


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0},
        {"temperature": 0.7, "top_k": 2},
        {"temperature": 1.3, "top_p": 0.8, "min_p": 0.1},
        {"temperature": 1.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    ],
    ids=str,
)
@pytest.mark.parametrize("drafter", [NgramDrafter(), ModelDrafter(HALF)], ids=["ngram", "model"])
def test_sampling_options_hold(drafter: Any, params: dict[str, Any]) -> None:
    parts = Parts(drafter, TokenVerifier(), FixedController(3))
    finding = check_law(parts, [SamplingParams(**params)], max_runs=200)
    assert finding.verdict is Verdict.PASS


def test_options_that_name_tokens_are_left_out_and_that_is_said() -> None:
    parts = Parts(NgramDrafter(), TokenVerifier(), FixedController(2))
    params = SamplingParams(temperature=1.0, logit_bias={40_000: 2.0})
    finding = check_law(parts, [params], max_runs=50)
    assert finding.verdict is Verdict.PASS
    assert finding.summary.endswith("were left out here.")


def test_coupling_holds_seed_by_seed_and_a_drafter_that_breaks_it_is_found() -> None:
    coupled = Parts(ModelDrafter(HALF), CouplingVerifier(), FixedController(3))
    assert check_law(coupled, WARM).verdict is Verdict.PASS

    class Draws(CouplingVerifier):
        """Says that it couples, and verifies by rejection."""

        def verify(self, draft: Any, p: Any, noise: Any, position: int) -> Any:
            return TokenVerifier().verify(draft, p, noise, position)

    broken = check_law(coupled._replace(verifier=Draws()), WARM)
    assert broken.verdict is Verdict.FAULT


@pytest.mark.parametrize("controller", plugins.names("controller"))
def test_every_registered_controller_keeps_the_law(controller: str) -> None:
    staged = plugins.find("controller", controller).make({})
    finding = check_law(Parts(ModelDrafter(HALF), TokenVerifier(), staged), WARM, max_runs=300)
    assert finding.verdict is Verdict.PASS, finding.summary


def test_nothing_drafted_is_no_pass() -> None:
    never = Line(lambda so_far, number, k: [])
    finding = check_law(Parts(never, TokenVerifier(), FixedController(2)), WARM, max_runs=20)
    assert finding.verdict is Verdict.INCONCLUSIVE
    plain = check_law(Parts(NoDrafter(), TokenVerifier(), FixedController(0)), WARM, max_runs=20)
    assert plain.verdict is Verdict.PASS


def test_a_drafter_that_cannot_draft_for_a_table_is_left_out_with_the_reason() -> None:
    class Refuses(NoDrafter):
        name: ClassVar[str] = "refuses"

        def open(self, target: TargetView, capacity: int) -> Any:
            raise InvalidInput("it knows Llama alone")

    finding = check_law(Parts(Refuses(), TokenVerifier(), FixedController(2)), WARM)
    assert finding.verdict is None
    assert "'refuses' cannot draft" in finding.summary
    assert "it knows Llama alone" in finding.summary


def test_a_broken_contract_is_a_fault() -> None:
    outside = Line(lambda so_far, number, k: [99][:k])
    finding = check_law(Parts(outside, TokenVerifier(), FixedController(2)), WARM)
    assert finding.verdict is Verdict.FAULT
    assert "contract" in finding.summary


def test_a_controller_that_looks_at_drafted_tokens_before_it_drops_them_is_found() -> None:
    """Rule 2 of the contracts: what is kept may not depend on the token itself."""

    class Peeks(NoDrafter):
        name: ClassVar[str] = "peeks"

        def open(self, target: TargetView, capacity: int) -> Any:
            return PeekingSession(ModelDrafter(script.draft).open(target, capacity))

    class PeekingSession:
        def __init__(self, inner: Any) -> None:
            self._inner = inner

        def observe(self, committed: Committed) -> None:
            self._inner.observe(committed)

        def propose(self, budget: Budget, warp: Any, noise: Any) -> Draft:
            draft = drive(self._inner.propose(budget, warp, noise))
            assert draft.probs is not None
            keep = next((i for i, token in enumerate(draft.tokens) if token == 0), len(draft))
            return Draft(draft.tokens[:keep], probs=draft.probs[:keep])

        def close(self) -> None:
            self._inner.close()

    script = scripts()[1]
    parts = Parts(Peeks(), TokenVerifier(), FixedController(2))
    finding = check_law(parts, WARM, on=[script], max_runs=200)
    assert finding.verdict is Verdict.FAULT


def test_models_within_drafters_become_the_scripted_one_and_controllers_see_no_clock() -> None:
    seen: list[Outcome] = []

    class Session:
        def budget(self) -> Budget:
            return Budget(2)

        def observe(self, outcome: Outcome) -> None:
            seen.append(outcome)

    class Watches:
        name = "watches"

        def open(self, opening: Opening = Opening()) -> Session:
            return Session()

    script = scripts()[0]
    parts = Parts(ModelDrafter(HALF), TokenVerifier(), Watches())
    staged = in_front_of(script, parts)
    assert isinstance(staged.drafter, ModelDrafter)
    assert staged.drafter.model is script.draft
    assert isinstance(staged.controller, ScriptedTimes)
    check_law(parts, WARM, on=[script], max_runs=20)
    assert {outcome.target_seconds for outcome in seen} <= {1 + 0.01 * rows for rows in range(1, 4)}
    assert all(outcome.draft_seconds == 0.1 * len(outcome.draft) for outcome in seen)


def test_references_of_another_vocabulary_are_left_out() -> None:
    drafter = NgramDrafter(references=((40_000, 40_001),))
    staged = in_front_of(scripts()[0], Parts(drafter, TokenVerifier(), FixedController(2)))
    assert staged.drafter == NgramDrafter()


def _table(p: list[float]) -> TableTarget:
    return TableTarget(torch.tensor(p, dtype=torch.float64))
