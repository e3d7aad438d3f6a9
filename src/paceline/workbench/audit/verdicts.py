"""The findings of an audit with their evidence, and the overall verdict."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import paceline

SCHEMA = 1
"""The version of the JSON form."""


class Verdict(StrEnum):
    """The verdict of an audit, and of each of its checks."""

    PASS = "pass"
    """Nothing differs, and a difference of the stated size would have been detected."""
    TIE_LIMITED = "tie-limited"
    """Greedy answers diverge, but only where the two best tokens nearly tie, within what rounding
    explains."""
    FAULT = "fault"
    """A difference that neither rounding nor chance explains."""
    INCONCLUSIVE = "inconclusive"
    """Nothing wrong was found, but there was too little data to say that nothing is."""

    @property
    def exit_code(self) -> int:
        """The exit status of the command line; 2 is for invalid input."""
        return {Verdict.FAULT: 1, Verdict.INCONCLUSIVE: 3}.get(self, 0)


_GRAVITY = (Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.TIE_LIMITED, Verdict.PASS)


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check.

    Args:
        check: the name of the check.
        verdict: None if it did not run, or only informs.
        summary: one or two sentences for readers.
        numbers: the measurements, by name; plain JSON values.
        evidence: rows of plain JSON values with the same keys.
    """

    check: str
    verdict: Verdict | None
    summary: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    evidence: tuple[Mapping[str, Any], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The finding as plain JSON values."""
        return {
            "check": self.check,
            "verdict": None if self.verdict is None else self.verdict.value,
            "summary": self.summary,
            "numbers": dict(self.numbers),
            "evidence": [dict(row) for row in self.evidence],
        }


@dataclass(frozen=True, slots=True)
class Audit:
    """A finished audit.

    Args:
        subject: the settings that were audited, by name; plain JSON values.
        findings: one per check, in order.
        seconds: the time it took.
    """

    subject: Mapping[str, Any]
    findings: tuple[Finding, ...]
    seconds: float = 0.0

    @property
    def verdict(self) -> Verdict:
        """See `overall`."""
        return overall(finding.verdict for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """The audit as plain JSON values; docs/audit.md has the fields."""
        return {
            "schema": SCHEMA,
            "kind": "audit",
            "paceline": paceline.__version__,
            "verdict": self.verdict.value,
            "exit_code": self.verdict.exit_code,
            "subject": dict(self.subject),
            "findings": [finding.to_json() for finding in self.findings],
            "seconds": self.seconds,
        }


def overall(verdicts: Iterable[Verdict | None]) -> Verdict:
    """The most severe verdict: fault, inconclusive, tie-limited, pass; inconclusive without any.

    >>> overall([Verdict.PASS, None, Verdict.TIE_LIMITED]).value
    'tie-limited'
    >>> overall([None]).value
    'inconclusive'
    """
    found = {verdict for verdict in verdicts if verdict is not None}
    return next((verdict for verdict in _GRAVITY if verdict in found), Verdict.INCONCLUSIVE)
