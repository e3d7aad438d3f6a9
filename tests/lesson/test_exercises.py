"""The ordering exercise and the quiz: by mouse, touch and keyboard, and what is announced."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from typing import Any

import pytest

INDEX = files("paceline.lesson").joinpath("page/index.html").read_text(encoding="utf-8")


class Answers(HTMLParser):
    """The letters of the answers in the static quiz."""

    def __init__(self) -> None:
        super().__init__()
        self.inside = False
        self.bold = False
        self.letters: list[str] = []
        self.feed(INDEX[INDEX.index("<lesson-quiz>") : INDEX.index("</lesson-quiz>")])

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.bold = tag == "b"

    def handle_data(self, data: str) -> None:
        if self.bold:
            self.letters.append(data)
            self.bold = False


LETTERS = Answers().letters
RIGHT = ["abcd".index(letter) for letter in LETTERS]


def test_twenty_answers_spread_over_the_letters() -> None:
    assert "".join(LETTERS) == "bdac" * 5
    assert Counter(LETTERS) == dict.fromkeys("abcd", 5)


pytestmark = pytest.mark.browser


def order(page: Any) -> Any:
    return page.locator("lesson-order")


def live(page: Any, text: str) -> None:
    page.wait_for_function(
        "(text) => document.getElementById('live').textContent === text", arg=text
    )


def by_clicks(page: Any, piece: int, slot: int) -> None:
    order(page).locator(f'[data-piece="{piece}"]').click()
    order(page).locator(f'[data-slot="{slot}"]').click()


def by_dragging(page: Any, piece: int, slot: int) -> None:
    source = order(page).locator(f'[data-piece="{piece}"]').bounding_box()
    target = order(page).locator(f'[data-slot="{slot}"]').bounding_box()
    page.mouse.move(source["x"] + 20, source["y"] + 20)
    page.mouse.down()
    page.mouse.move(target["x"] + 60, target["y"] + 20, steps=4)
    page.mouse.up()


def by_touch(page: Any, piece: int, slot: int) -> None:
    source = order(page).locator(f'[data-piece="{piece}"] b').bounding_box()
    target = order(page).locator(f'[data-slot="{slot}"]').bounding_box()
    session = page.context.new_cdp_session(page)
    points = [
        (source["x"] + 10, source["y"] + 10),
        (source["x"] + 40, source["y"] + 10),
        (target["x"] + 60, target["y"] + 20),
    ]
    for kind, point in zip(("touchStart", "touchMove", "touchMove"), points, strict=True):
        touch = [{"x": point[0], "y": point[1]}]
        session.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": touch})
    session.send("Input.dispatchTouchEvent", {"type": "touchEnd", "touchPoints": []})


def tab_to(page: Any, selector: str) -> None:
    for _ in range(40):
        if page.evaluate("(s) => document.activeElement.matches(s)", selector):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"Tab does not reach {selector}")


def by_keyboard(page: Any, piece: int, slot: int) -> None:
    page.evaluate("document.querySelector('#order h2').tabIndex = -1")
    page.locator("#order h2").focus()
    tab_to(page, f'[data-piece="{piece}"]')
    page.keyboard.press("Enter")
    tab_to(page, f'[data-slot="{slot}"]')
    page.keyboard.press("Space")


@pytest.mark.parametrize("way", [by_clicks, by_dragging, by_touch, by_keyboard])
def test_the_order_by_every_way(
    open_page: Callable[..., Any], way: Callable[[Any, int, int], None]
) -> None:
    page = open_page(has_touch=way is by_touch)
    order(page).scroll_into_view_if_needed()
    assert order(page).get_by_role("button", name="Check").is_disabled()
    for step in range(5):
        way(page, step, step)
    assert order(page).locator("[data-piece]").count() == 0
    order(page).get_by_role("button", name="Check").click()
    assert order(page).locator(".slot.good").count() == 5
    assert "All five are in order" in order(page).locator("[data-verdict]").inner_text()


def test_a_wrong_order_is_marked_and_gets_a_reason(page: Any) -> None:
    for slot, piece in enumerate((0, 2, 1, 3, 4)):
        by_clicks(page, piece, slot)
    order(page).get_by_role("button", name="Check").click()
    verdict = order(page).locator("[data-verdict]").inner_text()
    assert verdict.startswith(
        "2 steps are out of place. Slot 2: a test needs distributions: score first."
    )
    marks = [
        "good" in order(page).locator(f'[data-slot="{slot}"]').get_attribute("class")
        for slot in range(5)
    ]
    assert marks == [True, False, False, True, True]
    assert order(page).locator(".slot.bad i").all_inner_texts() == ["✗ not here"] * 2


def test_what_is_announced_and_let_go(page: Any) -> None:
    first = order(page).locator("[data-piece]").first
    first.click()
    assert first.get_attribute("aria-pressed") == "true"
    page.keyboard.press("Escape")
    assert first.get_attribute("aria-pressed") == "false"
    live(page, "Let go.")
    first.click()
    order(page).locator('[data-slot="1"]').click()
    live(page, "Step placed in slot 2. 4 left.")
    # A filled slot gives its step back, and the focus goes with it.
    order(page).locator('[data-slot="1"]').click()
    assert order(page).locator("[data-piece]").count() == 5
    assert page.evaluate("document.activeElement.hasAttribute('data-piece')")


def test_the_steps_never_begin_solved(page: Any) -> None:
    for _ in range(30):
        order(page).get_by_role("button", name="Shuffle again").click()
        pieces = (
            order(page)
            .locator("[data-piece]")
            .evaluate_all("(pieces) => pieces.map((piece) => Number(piece.dataset.piece))")
        )
        assert sorted(pieces) == [0, 1, 2, 3, 4]
        assert pieces != [0, 1, 2, 3, 4]
    order(page).get_by_role("button", name="Show solution").click()
    assert order(page).locator(".slot.good").count() == 5


def quiz(page: Any) -> Any:
    return page.locator("lesson-quiz")


def asked(page: Any) -> int:
    return int(quiz(page).locator("[data-question]").get_attribute("data-question"))


def test_all_right_by_clicks(page: Any) -> None:
    for number in range(20):
        assert asked(page) == number
        quiz(page).locator(f'[data-option="{RIGHT[number]}"]').click()
        assert quiz(page).locator("[data-verdict] b").inner_text() == "Right."
        quiz(page).locator("[data-next]").click()
    assert quiz(page).locator("[data-score]").inner_text() == "20 of 20 right"
    assert quiz(page).locator(".missed li").count() == 0


def test_all_wrong_by_keys_and_again(page: Any) -> None:
    quiz(page).locator("[data-option]").first.focus()
    places = set()
    for number in range(20):
        options = (
            quiz(page)
            .locator("[data-option]")
            .evaluate_all("(options) => options.map((option) => Number(option.dataset.option))")
        )
        assert sorted(options) == [0, 1, 2, 3]
        places.add(options.index(RIGHT[number]))
        page.keyboard.press(str(1 + (options.index(RIGHT[number]) + 1) % 4))
        verdict = quiz(page).locator("[data-verdict]")
        assert verdict.inner_text().startswith("Not so. The answer is: ")
        right = quiz(page).locator(".option.good")
        assert right.get_attribute("data-option") == str(RIGHT[number])
        page.keyboard.press("Enter")  # the focus is on the button for the next question
    assert places == {0, 1, 2, 3}
    assert quiz(page).locator("[data-score]").inner_text() == "0 of 20 right"
    reasons = quiz(page).locator(".missed li").all_inner_texts()
    assert len(reasons) == 20
    assert all(re.search(r"\w\.", reason) for reason in reasons)
    quiz(page).get_by_role("button", name="Ask those again").click()
    assert asked(page) == 0


def test_an_answer_is_announced_with_its_reason(page: Any) -> None:
    quiz(page).locator(f'[data-option="{RIGHT[0]}"]').click()
    live(page, "Right. A poor draft costs speed. It never costs correctness.")
