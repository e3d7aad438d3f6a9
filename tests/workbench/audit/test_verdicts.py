import json

import pytest

from paceline.workbench.audit.verdicts import Audit, Finding, Verdict, overall


@pytest.mark.parametrize(
    ("verdicts", "expected"),
    [
        (["pass", "pass"], "pass"),
        (["pass", "tie-limited", None], "tie-limited"),
        (["tie-limited", "inconclusive"], "inconclusive"),
        (["inconclusive", "fault", "pass"], "fault"),
        ([], "inconclusive"),
        ([None], "inconclusive"),
    ],
)
def test_the_gravest_verdict_wins(verdicts, expected):
    found = overall(None if verdict is None else Verdict(verdict) for verdict in verdicts)
    assert found.value == expected


def test_exit_codes():
    codes = {verdict.value: verdict.exit_code for verdict in Verdict}
    assert codes == {"pass": 0, "tie-limited": 0, "fault": 1, "inconclusive": 3}


def test_json_is_plain():
    finding = Finding("a check", Verdict.PASS, "All is well.", {"n": 1}, ({"row": 1},))
    found = Audit({"model": "m"}, (finding, Finding("other", None, "Left out.")), 0.5).to_json()
    assert json.loads(json.dumps(found)) == found
    assert found["verdict"] == "pass"
    assert found["findings"][0]["evidence"] == [{"row": 1}]
    assert found["findings"][1]["verdict"] is None
