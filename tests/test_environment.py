"""What figures depend on."""

from __future__ import annotations

from paceline.environment import environment


def test_the_environment_names_what_figures_depend_on() -> None:
    found = environment()
    assert found["torch"]
    assert found["cores"] >= 1
    assert found["command"].startswith("paceline")
