"""Writes the lesson's default figures into its page, for readers whose browser runs no scripts.

    python scripts/lesson_figures.py

The figures are those that the widgets draw with their default settings, in Chromium. A test
compares them with the page, so run this after changing a widget's figure, its words or a recorded
run.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

from playwright.sync_api import Browser

sys.path.insert(0, str(Path(__file__).parent.parent))

from tests.lesson.browser import launched, opened

INDEX = Path(__file__).parent.parent / "src/paceline/lesson/page/index.html"

FIGURES = {
    "race": "lesson-race .prompt, lesson-race .lanes, lesson-race .key, lesson-race [data-verdict]",
    "lab": "lesson-lab figure",
    "gain": "lesson-gain figure",
    "diagrams": "lesson-diagrams .pair",
    "planner": "lesson-planner figure",
    "rounds": "lesson-rounds [data-verdict], lesson-rounds .panel > .scroll, lesson-rounds figure",
}
"""By the name of its place in the page, the elements of a widget that need no script."""

WIDTH = 760
"""Of the page when figures are drawn: wide enough for one column of panels, and they shrink."""

_MARKS = r"(<!-- figure:{name} -->).*?(<!-- /figure -->)"

_STILL = """elements => elements.map(element => {
  const copy = element.cloneNode(true);
  copy.querySelectorAll("details, button, .grip .reach").forEach(part => part.remove());
  for (const part of [copy, ...copy.querySelectorAll("*")]) {
    for (const name of ["data-verdict", "data-value", "data-node", "data-grip", "data-lane"]) {
      part.removeAttribute(name);
    }
    part.classList.remove("grip");
  }
  const walk = document.createTreeWalker(copy, NodeFilter.SHOW_COMMENT);
  const comments = [];
  while (walk.nextNode()) comments.push(walk.currentNode);
  comments.forEach(comment => comment.remove());
  return copy.outerHTML;
}).join("\\n")"""


def drawn(browser: Browser) -> dict[str, str]:
    """The markup of each figure."""
    with opened(browser, width=WIDTH) as page:
        return {
            name: re.sub(r"\n\s+", "\n", page.eval_on_selector_all(selector, _STILL))
            for name, selector in FIGURES.items()
        }


def filled(text: str, figures: dict[str, str]) -> str:
    """The page with these figures in their places."""
    for name, figure in figures.items():
        marks = re.compile(_MARKS.format(name=name), re.DOTALL)
        assert marks.search(text), f"the page has no place for the figure {name}"
        text = marks.sub(lambda found, figure=figure: f"{found[1]}\n{figure}\n{found[2]}", text)
    return text


if __name__ == "__main__":
    with launched() as chromium:
        INDEX.write_text(filled(INDEX.read_text("utf-8"), drawn(chromium)), "utf-8")
