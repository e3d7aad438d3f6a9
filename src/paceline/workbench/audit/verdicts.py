"""What an audit finds: findings with their evidence, and the verdict that they add up to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import paceline

SCHEMA = 1
"""The version of the JSON form."""


class Verdict(StrEnum):
    """What an audit says, and each of its checks."""

    PASS = "pass"
    """Nothing differs, and there was enough to see a difference of the stated size."""
    TIE_LIMITED = "tie-limited"
    """Greedy answers part somewhere, and only where the two best tokens nearly tie, as far as
    rounding explains it."""
    FAULT = "fault"
    """A difference that neither rounding nor chance explains."""
    INCONCLUSIVE = "inconclusive"
    """Nothing wrong was found, and there was too little to say that nothing is."""

    @property
    def exit_code(self) -> int:
        """The exit status of the command line; 2 is for input that cannot be used."""
        return {Verdict.FAULT: 1, Verdict.INCONCLUSIVE: 3}.get(self, 0)


_GRAVITY = (Verdict.FAULT, Verdict.INCONCLUSIVE, Verdict.TIE_LIMITED, Verdict.PASS)


@dataclass(frozen=True, slots=True)
class Finding:
    """What one check found.

    Args:
        check: its name.
        verdict: None where it did not run, or only tells.
        summary: a sentence or two for people.
        numbers: what was measured, by name; plain JSON values.
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
    """An audit that is done.

    Args:
        subject: what was audited, by name of the setting; plain JSON values.
        findings: one a check, in order.
        seconds: what it took.
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
    """The gravest verdict: fault, inconclusive, tie-limited, pass; inconclusive if there is none.

    >>> overall([Verdict.PASS, None, Verdict.TIE_LIMITED]).value
    'tie-limited'
    >>> overall([None]).value
    'inconclusive'
    """
    found = {verdict for verdict in verdicts if verdict is not None}
    return next((verdict for verdict in _GRAVITY if verdict in found), Verdict.INCONCLUSIVE)
