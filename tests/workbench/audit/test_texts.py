"""Where texts part, and what the baseline's probabilities make of it."""

import pytest

from paceline.workbench.audit.endpoint import Reply, TokenScore
from paceline.workbench.audit.texts import part, words


def told(*tokens):
    scores = tuple(
        TokenScore(top[0][0], top[0][1], tuple(sorted(top, key=lambda pair: -pair[1])))
        for top in tokens
    )
    return Reply("".join(score.text for score in scores), scores=scores)


ANSWER = told([("The", -0.1), ("A", -2.0)], [(" cat", -0.69), (" dog", -0.70), (" cow", -4.0)])


@pytest.mark.parametrize(
    ("candidate", "label", "gap", "bound"),
    [
        ("The dog", "tie", 0.01, False),
        ("The cow", "fault", 3.31, False),
        ("The owl", "fault", 3.31, True),
        ("A cat", "fault", 1.9, False),
        ("The", "tie", 0.01, False),
    ],
)
def test_gaps(candidate, label, gap, bound):
    found = part("The cat", candidate, ANSWER, tolerance=0.02)
    assert (found.label, found.at_least) == (label, bound)
    assert found.gap == pytest.approx(gap)


def test_the_same_text_has_no_difference():
    assert part("The cat", "The cat", None, tolerance=0.02) is None


def test_what_cannot_be_told():
    assert part("a", "b", None, tolerance=0.1).label == "unclassified"
    assert part("a", "b", Reply("a"), tolerance=0.1).label == "unclassified"
    other = part("The cat", "The dog", told([("A", -0.1), ("The", -0.2)]), tolerance=0.1)
    assert "answered differently" in other.reason
    longer = part("The cat", "The cat sat", ANSWER, tolerance=0.1)
    assert longer.label == "unclassified"
    alone = told([("The", -0.1)])
    assert "no other token" in part("The", "A", alone, tolerance=0.1).reason


def test_words_make_up_the_text():
    text = "Yes,  it's 3.5\n\nor  "
    assert "".join(words(text)) == text
    assert words("") == ()
