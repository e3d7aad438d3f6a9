"""The package, the changelog, the Makefile and the README agree with one another."""

import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def makefile_targets() -> set[str]:
    return set(re.findall(r"^([a-z][a-z-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def make_commands(text: str) -> set[str]:
    """The targets of every `make TARGET` in inline code or at the start of a line of code."""
    return set(re.findall(r"(?:`|^)make ([a-z][a-z-]*)", text, re.MULTILINE))


def test_the_installed_version_is_that_of_pyproject() -> None:
    assert importlib.metadata.version("paceline") == PROJECT["version"]


def test_the_changelog_starts_with_the_version_in_work() -> None:
    top = re.search(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert top is not None
    expected = "Unreleased" if Version(PROJECT["version"]).is_devrelease else PROJECT["version"]
    assert top[1] == expected


@pytest.mark.parametrize("page", ["README.md", "docs/structure.md"])
def test_make_targets_named_in_a_page_exist(page: str) -> None:
    commands = make_commands((ROOT / page).read_text())
    assert commands
    assert commands <= makefile_targets()


def test_ci_runs_the_tests_and_then_the_checks() -> None:
    loop = re.search(r"^for target in (.*); do$", (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert loop is not None
    assert loop[1].split() == ["test", "check"]
    assert set(loop[1].split()) <= makefile_targets()


def test_the_readme_names_the_two_commands_on_its_first_screen() -> None:
    first_screen = "\n".join((ROOT / "README.md").read_text().splitlines()[:20])
    assert make_commands(first_screen) == {"demo", "test"}


def test_every_makefile_target_is_phony_and_explained() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    explained = re.findall(r"^([a-z][a-z-]*):.* ## \S", text, re.MULTILINE)
    assert phony is not None
    assert set(phony[1].split()) == set(explained) == makefile_targets()


def test_development_pins_torch_inside_the_range_that_users_get() -> None:
    core = {item.name: item for item in map(Requirement, PROJECT["dependencies"])}
    dev = {item.name: item for item in map(Requirement, PROJECT["optional-dependencies"]["dev"])}
    (pin,) = dev["torch"].specifier
    assert pin.operator == "=="
    assert core["torch"].specifier.contains(pin.version)


@pytest.mark.parametrize("page", ["README.md", "docs/index.md", "docs/drafters/none.md"])
def test_relative_links_lead_somewhere(page: str) -> None:
    path = ROOT / page
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", path.read_text())
    assert targets
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize("group", sorted(PROJECT["entry-points"]))
def test_every_entry_point_loads_under_its_own_name(group: str) -> None:
    declared = PROJECT["entry-points"][group]
    installed = {point.name: point for point in importlib.metadata.entry_points(group=group)}
    assert {name: installed[name].value for name in declared} == declared
    for name in declared:
        loaded = installed[name].load()
        assert isinstance(loaded, type)
        assert loaded.__module__ == installed[name].module


def test_the_console_script_answers() -> None:
    script = Path(sys.executable).with_name("paceline")
    answer = subprocess.run(
        [script, "--help"], check=False, capture_output=True, text=True, timeout=60
    )
    assert answer.returncode == 0, answer.stderr
    assert "generate" in answer.stdout
