import io

import pytest
from rich.console import Console

from paceline.cli.demo_view import Lines, Screen, verdict
from tests.cli.scripted import Scripted
from tests.cli.test_comparison import CASE, compared


def timed(none, ngram, **options):
    return compared(Scripted("abcdefgh", "abcdefgh", {"none": none, "ngram": ngram}, **options))


@pytest.mark.parametrize(
    ("none", "ngram", "said"),
    [
        ([3.0], [1.0], "Speculation was 3.00 times as fast as plain decoding."),
        ([1.0], [1.02], "made no difference to the speed here (0.98 times)"),
        (
            [1.0],
            [2.0],
            "Speculation was SLOWER than plain decoding here (0.50 times its speed): a round gave "
            "2.00 tokens and took 4.00 times as long.",
        ),
        (
            [1.0, 1.0, 1.0],
            [0.5, 2.0, 0.5],
            "The timings disagree: speculation ran at 0.50 to 2.00 times the speed",
        ),
    ],
)
def test_the_verdict_says_what_was_measured(none, ngram, said):
    assert said in verdict(timed(none, ngram))
    assert verdict(timed(none, ngram)).endswith("The tokens are identical.")


@pytest.mark.parametrize(
    ("gap", "why"), [(0.25, "more than rounding explains"), (1e-6, "a near-tie")]
)
def test_the_verdict_says_where_tokens_part_and_why(gap, why):
    found = verdict(compared(Scripted("abcdef", "abXdef", gap=gap)))
    assert "NOT identical: they diverge at token 3, where plain decoding has 'c' and" in found
    assert f"speculation 'X'. The two best logits are {gap:.2g} apart there: {why}" in found


def drawn(comparison, view_of, width):
    screen = io.StringIO()
    settings = {"force_terminal": True, "color_system": "standard", "highlight": False}
    console = Console(file=screen, width=width, **settings)
    view = view_of(console)
    with view.begin(1, CASE):
        view.show("plain", comparison.plain_pieces[:2])
        view.step(1)
    view.finish(comparison)
    return screen.getvalue()


def final_lines(text):
    """What is left on the screen, without its colours."""
    import re

    return re.sub(r"\x1b\[[\d;?]*\w", "", text.rsplit("\x1b[2K", 1)[-1]).splitlines()


@pytest.mark.parametrize(("width", "beside"), [(80, True), (60, False)])
def test_panels_stand_side_by_side_where_there_is_room(width, beside):
    text = drawn(timed([2.0], [1.0]), lambda console: Screen(console, 3), width)
    lines = final_lines(text)
    answers = [line for line in lines if "abcdefgh" in line]
    assert [line.count("abcdefgh") for line in answers] == ([2] if beside else [1, 1])
    assert all(len(line) <= width for line in lines)
    assert any("4.0 tokens/s" in line for line in lines)
    assert any("2.00 tokens per round, 25% accepted" in line for line in lines)
    last = text.rsplit("\x1b[2K", 1)[-1]
    assert "\x1b[32mabcdefgh" in last.replace("\x1b[0m\x1b[32m", "")


def test_lines_hold_the_prompt_both_speeds_and_the_answer_once():
    text = drawn(timed([2.0], [1.0]), Lines, 80)
    assert "Prompt 1. A case." in text
    assert "  | the prompt" in text
    assert "plain: 4.0 tokens/s, 1.00 tokens per round" in text
    assert "speculative (ngram): 8.0 tokens/s, 2.00 tokens per round, 25% accepted" in text
    assert text.count("  | abcdefgh") == 1


def test_lines_hold_both_answers_where_they_differ():
    text = drawn(compared(Scripted("abcdef", "abXdef")), Lines, 80)
    assert "  | abcdef" in text
    assert "  | abXdef" in text
