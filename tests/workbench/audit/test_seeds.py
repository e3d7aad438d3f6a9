"""Same seed, same text."""

from __future__ import annotations

from typing import ClassVar

from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.none import NoDrafter
from paceline.testing.table import TableTarget
from paceline.verifiers.coupling import CouplingVerifier
from paceline.verifiers.token import TokenVerifier
from paceline.workbench.audit.seeds import check_seeds
from paceline.workbench.audit.verdicts import Verdict
from tests.workbench.audit.conftest import PassesDiffer, cycle, over

WARM = {"temperature": 1.0, "drafter": "ngram", "num_draft_tokens": 3}


def test_a_seed_gives_the_same_text_again(prompts):
    finding = check_seeds(over(TableTarget(cycle(0.4))), prompts, WARM, max_tokens=12)
    assert finding.verdict is Verdict.PASS
    assert all("plain" not in row for row in finding.evidence)


def test_coupling_gives_the_text_of_plain_decoding(prompts):
    options = {**WARM, "verify": "coupling"}
    finding = check_seeds(over(TableTarget(cycle(0.4))), prompts, options, max_tokens=12)
    assert finding.verdict is Verdict.PASS
    assert [row["plain"] for row in finding.evidence] == ["same", "same"]


def test_a_rule_that_only_says_that_it_couples_is_a_fault(prompts):
    class Draws(CouplingVerifier):
        name: ClassVar[str] = "draws"

        def verify(self, draft, p, noise, position):
            return TokenVerifier().verify(draft, p, noise, position)

    options = {**WARM, "verify": Draws()}
    finding = check_seeds(over(TableTarget(cycle(0.4))), prompts, options, max_tokens=24)
    assert finding.verdict is Verdict.FAULT


def test_rounding_may_decide_a_race_and_more_than_rounding_may_not(prompts):
    options = {**WARM, "verify": "coupling"}
    far = check_seeds(over(PassesDiffer(cycle(0.4), 2.0)), prompts, options, max_tokens=24)
    assert far.verdict is Verdict.FAULT
    near = check_seeds(over(PassesDiffer(cycle(0.4), 1e-9)), prompts, options, max_tokens=24)
    assert near.verdict in (Verdict.PASS, Verdict.TIE_LIMITED)


def test_chance_from_elsewhere_is_a_fault(prompts):
    class Forgets(NoDrafter):
        """Drafts every other time that it is opened."""

        name: ClassVar[str] = "forgets"
        opened: ClassVar[list[int]] = []

        def open(self, target, capacity):
            self.opened.append(1)
            inner = NgramDrafter() if len(self.opened) % 2 else NoDrafter()
            return inner.open(target, capacity)

    options = {"temperature": 1.0, "drafter": Forgets(), "num_draft_tokens": 3}
    finding = check_seeds(over(TableTarget(cycle(0.4))), prompts, options, max_tokens=24)
    assert finding.verdict is Verdict.FAULT


def test_where_draft_lengths_follow_the_clock_the_rule_decides(prompts):
    options = {"temperature": 1.0, "drafter": "ngram", "controller": "auto"}
    model = over(TableTarget(cycle(0.4)))
    unnamed = check_seeds(model, prompts, options, max_tokens=12)
    assert unnamed.verdict is Verdict.PASS
    assert all(row["plain"] == "same" for row in unnamed.evidence)
    named = check_seeds(model, prompts, {**options, "verify": "token"}, max_tokens=12)
    assert named.verdict is None
    assert "depend on the clock" in named.summary
