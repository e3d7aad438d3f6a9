"""An audit as a report, for HTML and Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.workbench.audit.verdicts import Audit, Finding, Verdict
from paceline.workbench.report import Definitions, Report, Section, Table, Text
from paceline.workbench.report import Verdict as Block
from paceline.workbench.report.blocks import Status

_STATUS: dict[Verdict, Status] = {
    Verdict.PASS: "good",
    Verdict.TIE_LIMITED: "warning",
    Verdict.FAULT: "bad",
    Verdict.INCONCLUSIVE: "warning",
}
_MEANING = {
    Verdict.PASS: "Nothing differs, and a difference of the stated size would have been detected.",
    Verdict.TIE_LIMITED: "Greedy answers diverge, but only where the two best tokens nearly "
    "tie, within what rounding explains.",
    Verdict.FAULT: "There is a difference that neither rounding nor chance explains.",
    Verdict.INCONCLUSIVE: "Nothing wrong was found, but there was too little data to say that "
    "nothing is.",
}
_TERMS = (
    ("exact distribution", "The distribution of the answers on scripted targets, by enumeration."),
    ("greedy equality", "Greedy answers with and without speculation, from their start."),
    ("tie", "A first difference where the two best tokens are equally probable, up to rounding."),
    ("gap", "The distance of the two best tokens there: in logits, or in nats for servers."),
    ("total variation", "Half the sum of all differences of two distributions: 0 to 1 (disjoint)."),
    ("sampled answers", "Two-sample tests by permuting whole answers, prompt by prompt; p-values "
    "are corrected for the number of tests by Holm's method."),
    ("power", "The probability that a difference of the stated size would have been found."),
    ("false-alarm rate", "The probability of a fault from the two-sample tests if there is "
    "none."),
)  # fmt: skip


def report(audit: Audit, environment: Mapping[str, Any]) -> Report:
    """The whole report.

    Args:
        audit: the findings.
        environment: the environment, as `paceline.environment` gives it.
    """
    subject = audit.subject
    what = subject.get("url") or f"{subject.get('model')} with {subject.get('drafter')}"
    lead = f"Does speculation change the output? {what}, in {audit.seconds:.0f} s."
    return Report(
        "Audit",
        lead,
        [
            summary(audit),
            *(_section(finding) for finding in audit.findings),
            Section("Terms", (Definitions((*_verdicts(), *_TERMS)),)),
            Section("What was audited", (_pairs(subject, "setting"),)),
            Section("Environment", (_pairs(environment, "of the run"),)),
        ],
    )


def summary(audit: Audit) -> Section:
    """The verdict, and one line per check."""
    rows = tuple((f.check, _word(f), f.summary) for f in audit.findings)
    return Section(
        "Verdict",
        (
            Block(_STATUS[audit.verdict], audit.verdict.value, _MEANING[audit.verdict]),
            Table(("check", "verdict", "what was found"), rows, num_names=3),
        ),
    )


def _section(finding: Finding) -> Section:
    blocks: list[Any] = [Text(finding.summary)]
    if finding.numbers:
        blocks.append(_pairs(finding.numbers, "number"))
    if finding.evidence:
        headers = tuple(finding.evidence[0])
        rows = tuple(tuple(show(row.get(key)) for key in headers) for row in finding.evidence)
        names = tuple(header.replace("_", " ") for header in headers)
        blocks.append(Table(names, rows, caption="The evidence, row by row."))
    return Section(f"{finding.check}: {_word(finding)}", tuple(blocks))


def _verdicts() -> Sequence[tuple[str, str]]:
    return [(verdict.value, _MEANING[verdict]) for verdict in Verdict]


def _word(finding: Finding) -> str:
    return "no verdict" if finding.verdict is None else finding.verdict.value


def _pairs(values: Mapping[str, Any], header: str) -> Table:
    rows = tuple((name.replace("_", " "), show(value)) for name, value in values.items())
    return Table((header, "value"), rows)


def show(value: Any) -> str:
    """A JSON value as a cell.

    >>> show(0.12345678), show(True), show(None), show([1, 2]), show({"a": 0.5})
    ('0.123', 'yes', '', '1 2', 'a 0.5')
    """
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {show(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return " ".join(map(show, value))
    return str(value).replace("\n", "⏎")
