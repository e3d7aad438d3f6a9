"""The laboratory: every rule's row, the draws, and bars, sliders and numbers that agree."""

from typing import Any

import pytest

pytestmark = pytest.mark.browser

ROWS = {
    "token": ("0.8000", (0.4, 0.4, 0.2), "0.0000", "0.0000"),
    "block": ("0.8000", (0.4, 0.4, 0.2), "0.0000", "0.0000"),
    "naive": ("0.3800", (0.4, 0.4, 0.2), "0.0000", "0.0000"),
    "typical": ("1.0000", (0.6, 0.3, 0.1), "0.2000", "0.3000"),
    "lenience .5": ("1.0000", (0.6, 0.3, 0.1), "0.2000", "0.3000"),
    "lenience .8": ("0.9000", (0.5, 0.35, 0.15), "0.1000", "0.0750"),
    "top-beta": ("1.0000", (0.6, 0.3, 0.1), "0.2000", "0.3000"),
    "redraw": ("0.8000", (0.48, 0.38, 0.14), "0.0800", "0.1100"),
    "favourite": ("0.8000", (0.6, 0.3, 0.1), "0.2000", "0.2000"),
}


def lab(page: Any) -> Any:
    return page.locator("lesson-lab")


def figure(page: Any, name: str) -> str:
    return lab(page).locator(f'[data-value="{name}"]').inner_text()


def column(page: Any, place: int) -> list[float]:
    cells = lab(page).locator(f"table.laws tbody td:nth-child({place})").all_inner_texts()
    return [float(cell) for cell in cells]


def test_every_rule_on_the_worked_pair_and_on_pair_a(page: Any) -> None:
    for rule, (kept, output, distance, on_a) in ROWS.items():
        lab(page).get_by_role("button", name="Worked example").click()
        page.locator("#lab-rule").select_option(rule)
        assert figure(page, "kept") == kept
        assert column(page, 6) == list(output)
        assert figure(page, "distance") == distance
        badge = "exact" if distance == "0.0000" else "lossy"
        assert lab(page).locator("[data-badge]").text_content() == badge
        lab(page).get_by_role("button", name="Pair A").click()
        assert figure(page, "distance") == on_a


def test_the_worked_example(page: Any) -> None:
    assert column(page, 4) == [0.6667, 1, 1]
    assert column(page, 5) == [0, 0.5, 0.5]
    assert figure(page, "overlap") == "0.8000"
    assert page.locator("#lab table").first.inner_text().count("2/3") == 1


def test_two_hundred_thousand_draws(page: Any) -> None:
    lab(page).get_by_role("button", name="Draw 200,000").click()
    text = lab(page).locator("[data-drawn]").inner_text()
    for number in ("80,087", "79,806", "40,107", "0.4004", "0.3990", "0.2005", "159,739"):
        assert number in text
    for number in (".4016", ".3983", ".2001", ".0011"):
        assert number in text
    page.locator("#lab-rule").select_option("redraw")
    assert lab(page).locator("[data-drawn]").count() == 0
    lab(page).get_by_role("button", name="Draw 200,000").click()
    text = lab(page).locator("[data-drawn]").inner_text()
    assert all(number in text for number in ("96,137", "75,965", "27,898"))
    assert "published" not in text


def shown(page: Any, which: str) -> tuple[list[float], list[float]]:
    """A distribution by its sliders and by its number fields."""
    found: list[list[float]] = [[], []]
    for x in range(lab(page).locator(".masses fieldset").count()):
        found[0].append(float(page.locator(f"#lab-{which}-{x}").input_value()))
        found[1].append(float(page.locator(f"#lab-{which}-{x} + .typed input").input_value()))
    return found[0], found[1]


def agree(page: Any) -> None:
    for which, place in (("q", 2), ("p", 3)):
        sliders, numbers = shown(page, which)
        assert sum(column(page, place)) == pytest.approx(1, abs=2e-4)
        assert numbers == pytest.approx(column(page, place), abs=1e-4)
        assert sliders == pytest.approx(numbers, abs=0.0051)  # a slider has steps of a hundredth
        bars = (
            lab(page)
            .locator(f'[data-grip^="{which}"] line')
            .evaluate_all(
                "(lines) => lines.map((line) => (194 - Number(line.getAttribute('y1'))) / 180)"
            )
        )
        assert bars == pytest.approx(numbers, abs=1e-3)


def test_bars_sliders_and_numbers_agree(page: Any) -> None:
    agree(page)
    # By dragging the top of a bar: 45 units of the picture are a quarter.
    grip = lab(page).locator('[data-grip="q0"] .reach')
    grip.scroll_into_view_if_needed()
    box = grip.bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down()
    page.mouse.move(x, y + 20, steps=3)
    page.mouse.move(x, y + 45, steps=3)
    page.mouse.up()
    agree(page)
    _, numbers = shown(page, "q")
    assert numbers[0] == pytest.approx(0.35, abs=0.02)
    assert numbers[1] / numbers[2] == pytest.approx(3, abs=0.01)
    # By number field and by keyboard.
    page.locator("#lab-p-1 + .typed input").fill("0.7")
    agree(page)
    assert shown(page, "p")[1] == pytest.approx([0.2, 0.7, 0.1], abs=1e-4)
    page.locator("#lab-p-1").focus()
    page.keyboard.press("Home")
    agree(page)
    assert shown(page, "p")[1] == pytest.approx([0.6667, 0, 0.3333], abs=1e-4)


def test_tokens_are_added_and_dropped(page: Any) -> None:
    for size in (4, 5):
        lab(page).get_by_role("button", name="Add a token").click()
        assert lab(page).locator(".masses fieldset").count() == size
        agree(page)
    assert lab(page).get_by_role("button", name="Add a token").is_disabled()
    for _ in range(2):
        lab(page).get_by_role("button", name="Drop a token").click()
        agree(page)
    assert lab(page).get_by_role("button", name="Drop a token").is_disabled()
    lab(page).get_by_role("button", name="q = p").click()
    assert figure(page, "kept") == "1.0000"


def test_an_exact_rule_is_exact_whatever_the_sliders_say(page: Any) -> None:
    page.locator("#lab-p-0 + .typed input").fill("1")
    assert lab(page).locator("[data-badge]").text_content() == "exact"
    page.locator("#lab-q-1 + .typed input").fill("1")
    assert lab(page).locator("[data-badge]").text_content() == "exact"
    assert figure(page, "kept") == "0.0000"
    assert column(page, 6) == [1, 0, 0]
