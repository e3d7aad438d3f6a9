import pytest

from paceline.cli.comparison import Case, compare, first_difference, prompt_for
from paceline.errors import InvalidInput
from tests.cli.scripted import Scripted

CASE = Case("case", "A case", "the prompt")


def compared(model, repeats=3, max_tokens=99):
    return compare(
        model,
        CASE,
        num_draft_tokens=4,
        max_tokens=max_tokens,
        repeats=repeats,
        show=lambda kind, pieces: None,
        step=lambda repeat: None,
    )


def test_equal_answers_are_identical_and_the_speedup_is_that_of_the_medians():
    seconds = {"none": [2.0, 4.0, 60.0], "ngram": [1.0, 50.0, 2.0]}
    found = compared(Scripted("abcdefgh", "abcdefgh", seconds))
    assert found.identical
    assert found.difference is None
    assert found.speedup == pytest.approx(4.0 / 2.0)
    assert found.speedups == pytest.approx((2.0, 4.0 / 50.0, 30.0))


def test_plain_and_speculative_answers_take_turns():
    model = Scripted("ab", "ab")
    compared(model, repeats=3)
    assert model.calls == ["none", "ngram", "ngram", "none", "none", "ngram"]


def test_the_pair_that_warms_up_is_shown_and_not_timed():
    model, shown, steps = Scripted("abcd", "abcd"), [], []
    compare(
        model,
        CASE,
        num_draft_tokens=4,
        max_tokens=3,
        repeats=2,
        show=lambda kind, pieces: shown.append((kind, "".join(piece.text for piece in pieces))),
        step=steps.append,
    )
    texts = ["a", "ab", "abc"]
    assert shown == [(kind, text) for kind in ("plain", "speculative") for text in texts]
    assert steps == [1, 2]
    assert len(model.calls) == 4


@pytest.mark.parametrize(
    ("speculative", "position", "there"),
    [("abXdef", 2, "X"), ("abc", 3, ""), ("Xbcdef", 0, "X")],
)
@pytest.mark.parametrize(("gap", "near_tie"), [(0.5, False), (1e-5, True)])
def test_a_difference_is_found_and_explained(speculative, position, there, gap, near_tie):
    found = compared(Scripted("abcdef", speculative, gap=gap))
    assert not found.identical
    assert found.difference.position == position
    assert found.difference.plain == "abcdef"[position]
    assert found.difference.speculative == there
    assert found.difference.gap == pytest.approx(gap)
    assert found.difference.is_near_tie is near_tie


def test_a_difference_in_any_timed_answer_counts():
    class Fickle(Scripted):
        def generate(self, prompt, **options):
            if len(self.calls) == 4:  # of the last pair, the plain answer
                self.plain = "abX"
            return super().generate(prompt, **options)

    found = compared(Fickle("abc", "abc"))
    assert found.difference.position == 2


def test_an_answer_without_tokens_has_no_speed():
    found = compared(Scripted("abc", "abc"), max_tokens=0)
    assert found.identical
    assert found.speedup is None
    assert found.speedups == ()


def test_at_least_one_pair_is_timed():
    with pytest.raises(InvalidInput, match="repeats must be at least 1; it is 0"):
        compared(Scripted("a", "a"), repeats=0)


def test_first_difference_against_every_short_pair():
    from itertools import product

    words = ["".join(word) for n in range(4) for word in product("ab", repeat=n)]
    for one, other in product(words, words):
        common = max(i for i in range(4) if one[:i] == other[:i] and i <= min(len(one), len(other)))
        expected = None if one == other else common
        assert first_difference(one, other) == expected


def test_a_prompt_is_a_message_only_where_there_is_a_template():
    model = Scripted("a", "a")
    assert prompt_for(model, "x") == "x"
    model.tokenizer.chat_template = "{{ messages }}"
    assert prompt_for(model, "x") == [{"role": "user", "content": "x"}]
