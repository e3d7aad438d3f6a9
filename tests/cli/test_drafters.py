import dataclasses
import json

import pytest

from paceline.cli.describe import describe
from paceline.cli.drafters import is_exact, listed
from paceline.generate import plugins


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in ("drafter", "verifier") for name in plugins.names(kind)],
)
def test_what_is_read_from_the_source_is_what_the_class_says(kind, name):
    found, loaded = describe(plugins.points(kind)[name]), plugins.find(kind, name).factory
    required = [
        field.name
        for field in dataclasses.fields(loaded)
        if field.init
        and field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
    ]
    assert [setting for setting, _ in found.settings] == required
    assert all(text for _, text in found.settings)
    assert found.exact is getattr(loaded, "exact", None)
    # What a combination needs is what its drafters need.
    # What a drafter with several modes needs follows from its settings.
    needs = getattr(loaded, "needs", frozenset())
    by_settings = plugins.find(kind, name).traits.combines or isinstance(needs, property)
    assert frozenset(found.needs) == (frozenset() if by_settings else needs)
    assert found.summary.endswith(".")


def test_the_lists_hold_every_name(run):
    found = json.loads(run("drafters", "--json").stdout)
    assert [item["name"] for item in found["drafters"]] == plugins.names("drafter")
    assert [item["name"] for item in found["rules"]] == plugins.names("verifier")
    assert {"none", "ngram", "model"} <= {item["name"] for item in found["drafters"]}
    shown = run("drafters").stdout
    for item in (*found["drafters"], *found["rules"]):
        assert item["name"] in shown
        assert item["summary"].split()[0] in shown


def test_a_drafter_is_as_exact_as_the_default_rule():
    rules = listed("verifier")
    for drafter in listed("drafter"):
        assert is_exact(drafter, rules) is plugins.find("verifier", "token").factory.exact
    lossy = [dataclasses.replace(rule, exact=False) for rule in rules]
    assert is_exact(listed("drafter")[0], lossy) is False
    assert is_exact(listed("drafter")[0], []) is None
    says_no = dataclasses.replace(listed("drafter")[0], exact=False)
    assert is_exact(says_no, rules) is False
