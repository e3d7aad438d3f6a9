"""Makes the picture of the lesson's race that the README shows.

python -m scripts.lesson_picture
"""

from __future__ import annotations

from pathlib import Path

from tests.lesson.browser import launched, opened

PICTURE = Path(__file__).parent.parent / "docs" / "lesson-race.png"
WIDTH = 1040
"""Of the window: a README is about as wide."""


def main() -> None:
    """Draw the race at its end, without what is folded up."""
    with launched() as browser, opened(browser, width=WIDTH, reduced_motion="reduce") as page:
        page.evaluate("document.querySelectorAll('lesson-race details').forEach(d => d.remove())")
        page.locator("lesson-race .panel").first.screenshot(path=PICTURE)


if __name__ == "__main__":
    main()
