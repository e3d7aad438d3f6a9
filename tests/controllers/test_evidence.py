"""What drafts earned: bad luck is told from a change by the longer past."""

from __future__ import annotations

from paceline.controllers.evidence import Evidence


def after(*outcomes: tuple[int, int]) -> float:
    """The acceptance of a first token after drafts of one: (accepted of, drafts) in turn."""
    evidence = Evidence(0.65, prior_weight=3.0, size=4)
    for accepted, drafts in outcomes:
        for number in range(drafts):
            right = (number + 1) * accepted // drafts > number * accepted // drafts
            evidence.observe(1, int(right), 1, 1)
    return evidence.acceptance(1)[0]


def test_a_run_of_rejections_that_chance_explains_is_held_to_the_longer_past() -> None:
    """Of 100 tokens 55 were accepted, then 2 of 9: the recent ones alone say .41."""
    assert 0.47 < after((55, 100), (2, 9)) < 0.55


def test_a_change_is_followed_within_a_few_drafts() -> None:
    assert after((80, 100), (0, 15)) < 0.5
    assert after((80, 100), (0, 25)) < 0.35
    assert after((10, 100), (15, 15)) > 0.45


def test_before_anything_was_seen_the_prior_counts() -> None:
    assert after() == 0.65
    assert 0.35 < after((0, 1)) < 0.5
