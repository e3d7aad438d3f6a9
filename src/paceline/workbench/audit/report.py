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
    Verdict.PASS: "Nothing differs, and there was enough to see a difference of the stated size.",
    Verdict.TIE_LIMITED: "Greedy answers part somewhere, and only where the two best tokens nearly "
    "tie, as far as rounding explains it.",
    Verdict.FAULT: "There is a difference that neither rounding nor chance explains.",
    Verdict.INCONCLUSIVE: "Nothing wrong was found, and there was too little to say that nothing "
    "is.",
}
_TERMS = (
    ("exact law", "The law of the answers on scripted targets, by enumeration, against plain."),
    ("greedy equality", "Greedy answers with and without speculation, from their start."),
    ("tie", "A first difference where the two best tokens are as probable, up to rounding."),
    ("gap", "How far apart the two best tokens are there: in logits, or in nats for servers."),
    ("total variation", "Half the sum of all differences of two laws; 0 is the same, 1 disjoint."),
    ("sampled answers", "Two-sample tests by permuting whole answers, prompt by prompt; p-values "
    "are corrected for the number of tests by Holm's method."),
    ("power", "The probability that a difference of the stated size would have been found."),
    ("false-alarm rate", "The probability of a fault from the two-sample tests where there is "
    "none."),
)  # fmt: skip


def report(audit: Audit, environment: Mapping[str, Any]) -> Report:
    """The whole report.

    Args:
        audit: what was found.
        environment: of the run, as `paceline.workbench.report.environment` gives it.
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
            Section("What the words mean", (Definitions((*_verdicts(), *_TERMS)),)),
            Section("What was audited", (_pairs(subject, "setting"),)),
            Section("Environment", (_pairs(environment, "of the run"),)),
        ],
    )


def summary(audit: Audit) -> Section:
    """The verdict, and a line a check."""
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
