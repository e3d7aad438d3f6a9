"""The explorer's rows by slider, by number field and by keyboard; the stepper; the two diagrams."""

from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROWS = [
    ((4, 70, 0.13), ("1.77", "2.77", "1.52", "1.82")),
    ((4, 50, 0.13), ("0.94", "1.94", "1.52", "1.27")),
    ((8, 50, 0.13), ("1.00", "2.00", "2.04", "0.98")),
    ((16, 50, 0.13), ("1.00", "2.00", "3.08", "0.65")),
    ((4, 30, 0.13), ("0.43", "1.43", "1.52", "0.94")),
    ((4, 0, 0.13), ("0.00", "1.00", "1.52", "0.66")),
    ((4, 100, 0.13), ("4.00", "5.00", "1.52", "3.29")),
    ((0, 70, 0.13), ("0.00", "1.00", "1.00", "1.00")),
]
NAMES = ("Kept a round", "Tokens a round", "Cost, target passes", "Speed-up")


def value(page: Any, name: str) -> str:
    return page.locator(f'lesson-gain [data-value="{name}"]').inner_text().strip()


def figures(page: Any) -> tuple[str, ...]:
    return tuple(value(page, name).removesuffix("×").strip() for name in NAMES)


def slide(page: Any, control: str, to: float) -> None:
    page.locator(f"#{control}").evaluate(
        "(range, to) => { range.value = to; range.dispatchEvent(new Event('input')); }", str(to)
    )


def type_in(page: Any, control: str, to: float) -> None:
    page.locator(f"#{control} + .typed input").fill(str(to))


def press(page: Any, control: str, to: float) -> None:
    step = float(page.locator(f"#{control}").get_attribute("step"))
    page.locator(f"#{control}").focus()
    page.keyboard.press("Home")
    steps = round(to / step)
    if control != "gain-k":  # a page is a tenth of the range, here ten steps
        for _ in range(steps // 10):
            page.keyboard.press("PageUp")
        steps %= 10
    for _ in range(steps):
        page.keyboard.press("ArrowRight")


@pytest.mark.parametrize("way", [slide, type_in, press])
def test_every_row_by_every_way(page: Any, way: Any) -> None:
    for (k, a, c), expected in ROWS:
        for control, to in (("gain-k", k), ("gain-a", a), ("gain-c", c)):
            way(page, control, to)
        assert figures(page) == expected, (k, a, c)


def test_what_else_the_defaults_say(page: Any) -> None:
    assert figures(page) == ROWS[0][1]
    assert value(page, "Drafted and kept") == "44 %"
    assert value(page, "Refused or dropped") == "2.23"
    assert value(page, "Best K") == "4: 1.82 ×"
    assert value(page, "Even at α") == "34.5 %"
    type_in(page, "gain-k", 8)
    assert value(page, "Drafted and kept") == "27 %"
    type_in(page, "gain-k", 4)
    type_in(page, "gain-a", 50)
    assert value(page, "Best K") == "2: 1.39 ×"
    page.locator("lesson-gain").get_by_role("button", name="Chinchilla").click()
    assert page.locator("#gain-c + .typed input").input_value() == "0.128"
    page.locator("lesson-gain").get_by_role("button", name="Reset").click()
    assert figures(page) == ROWS[0][1]


def test_a_number_out_of_range_becomes_the_nearest(page: Any) -> None:
    field = page.locator("#gain-k + .typed input")
    field.fill("99")
    field.blur()
    assert field.input_value() == "16"
    assert figures(page) == ("2.33", "3.33", "3.08", "1.08")


def test_the_diagrams_label_their_points(page: Any) -> None:
    labels = page.locator("lesson-diagrams .mark text").all_text_contents()
    assert labels == [".1668", "1.1876", "3.4126", "3.3616", ".5904", "0.9887"]


def test_every_round_of_the_stepper(page: Any) -> None:
    widget = page.locator("lesson-stepper")
    for k in range(1, 7):
        for j in range(k + 1):
            type_in(page, "stepper-k", k)
            type_in(page, "stepper-j", j)
            added = "correction" if j < k else "bonus"
            total = f"{j + 1} token" + ("s" if j else "")
            expected = f"{j} kept + 1 {added} = {total} for one target pass"
            assert widget.locator("[data-tokens]").inner_text() == expected
            assert widget.locator(".line").nth(0).locator(".kept").count() == j
            assert widget.locator(".line").nth(0).locator("del").count() == k - j
            assert widget.locator(".line").nth(1).locator(".law").count() == k + 1
            assert widget.locator(".line").nth(2).locator(".cell").count() == j + 1
            assert widget.locator(f".cell.{added}").count() == 1


def test_the_stepper_goes_through_its_steps(page: Any) -> None:
    widget = page.locator("lesson-stepper")
    widget.get_by_role("button", name="From the first step").click()
    rows = []
    for _ in range(4):
        rows.append(widget.locator(".line").count())
        widget.get_by_role("button", name="Next").click()
    assert [*rows, widget.locator(".line").count()] == [1, 2, 2, 3, 3]
    # K cut below j takes j along.
    type_in(page, "stepper-k", 1)
    assert page.locator("#stepper-j + .typed input").input_value() == "1"
