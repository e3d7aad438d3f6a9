"""The report holds what was found, in both forms."""

from paceline.workbench.audit.report import report
from paceline.workbench.audit.verdicts import Audit, Finding, Verdict
from paceline.workbench.report import to_html, to_markdown

FOUND = Audit(
    {"model": "m", "drafter": "ngram", "sampling": {"temperature": 1.0}},
    (
        Finding("exact distribution", Verdict.PASS, "All is <well>.", {"runs": 12}),
        Finding(
            "greedy equality",
            Verdict.TIE_LIMITED,
            "One parts.",
            {"ties": 1},
            ({"prompt": "7", "gap": 0.01234, "plain": " a\n"}, {"prompt": "8", "gap": None}),
        ),
        Finding("other", None, "Left out."),
    ),
    12.0,
)


def test_markdown():
    text = to_markdown(report(FOUND, {"commit": "abc"}))
    assert "tie-limited" in text
    assert "| 7 | 0.0123 |" in text
    assert "no verdict" in text
    assert "| commit | abc |" in text


def test_html():
    page = to_html(report(FOUND, {}))
    assert "All is &lt;well&gt;." in page
    assert "<script src" not in page
    assert "Does speculation change the output? m with ngram" in page
