"""Names to plug-ins, those of others included."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path
from typing import Any, ClassVar

import pytest

from paceline.core.traits import Traits, traits_of
from paceline.drafters.ngram import NgramDrafter
from paceline.errors import InvalidInput, PacelineError, UnknownName
from paceline.generate import plugins
from paceline.verifiers.token import TokenVerifier


@dataclass(frozen=True)
class Foreign:
    """A third party's drafter."""

    name: ClassVar[str] = "foreign"
    depth: int
    width: int = 2


@pytest.fixture
def foreign(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    places = {
        "foreign": f"{__name__}:Foreign",
        "broken": "no_such_module_anywhere:Drafter",
        "renamed": "paceline.drafters.ngram:OldName",
    }

    found = EntryPoints(
        EntryPoint(name, place, "paceline.drafters") for name, place in places.items()
    )
    monkeypatch.setattr(plugins, "entry_points", lambda: found)
    monkeypatch.setitem(sys.modules, __name__, sys.modules[__name__])
    plugins.forget()
    yield
    plugins.forget()


def test_the_built_in_names() -> None:
    assert {"model", "ngram", "none"} <= set(plugins.names("drafter"))
    assert {"coupling", "token"} <= set(plugins.names("verifier"))
    assert "fixed" in plugins.names("controller")


@pytest.mark.parametrize("kind", ["drafter", "verifier", "controller"])
def test_each_is_registered_under_its_own_name(kind: Any) -> None:
    for name in plugins.names(kind):
        # Or it is another name of the same thing: tests/verifiers/test_table.py has the list.
        found = plugins.find(kind, name).factory
        own: str = found.name  # type: ignore[attr-defined]
        assert own == name or found is plugins.find(kind, own).factory


def test_make_builds_with_settings() -> None:
    assert plugins.find("drafter", "ngram").make({"max_ngram": 5}) == NgramDrafter(max_ngram=5)
    assert plugins.find("verifier", "token").make({}) == TokenVerifier()


def test_unknown_names_name_the_nearest() -> None:
    with pytest.raises(UnknownName, match="unknown drafter 'ngrma'; did you mean 'ngram'"):
        plugins.find("drafter", "ngrma")
    with pytest.raises(UnknownName, match="unknown verifier 'tokens'; did you mean 'token'"):
        plugins.find("verifier", "tokens").make({})


def test_unknown_settings_name_the_nearest_of_those_that_can_be_set() -> None:
    with pytest.raises(UnknownName, match="did you mean 'max_ngram'") as caught:
        plugins.find("drafter", "ngram").make({"max_ngrams": 5})
    known = str(caught.value).partition("Known: ")[2]
    assert known == "match, max_ngram, min_ngram, references"
    with pytest.raises(UnknownName, match=r"setting of drafter 'none': 'depth'.*Known: none$"):
        plugins.find("drafter", "none").make({"depth": 5})


def test_a_bad_value_is_the_plug_in_s_own_error() -> None:
    with pytest.raises(InvalidInput, match="max_ngram must be at least 1"):
        plugins.find("drafter", "ngram").make({"max_ngram": 0})


@pytest.mark.parametrize(("name", "needed"), [("none", False), ("ngram", False), ("model", True)])
def test_what_the_built_in_drafters_need(name: str, needed: bool) -> None:
    plugin = plugins.find("drafter", name)
    assert plugin.factory.needs_draft_model is needed, "they say so"  # type: ignore[attr-defined]
    assert plugin.traits.needs_draft_model is needed
    assert traits_of(Foreign) == Traits(), "one that says nothing needs none"


def install(folder: Path, package: str, points: str) -> None:
    """What a package installer leaves of a package that registers a drafter."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[paceline.drafters]\n{points}\n")


class TestClashes:
    def test_a_name_that_two_packages_claim_is_nobody_s(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(tmp_path, "shadow", "ngram = shadow.drafters:Other")
        monkeypatch.syspath_prepend(tmp_path)
        for call in (plugins.find, lambda kind, *_: plugins.points(kind)):
            with pytest.raises(PacelineError, match=r"two packages register .* 'ngram'") as caught:
                call("drafter", "ngram")
            assert "shadow (shadow.drafters:Other)" in str(caught.value)
            assert "paceline (paceline.drafters.ngram:NgramDrafter)" in str(caught.value)
        assert plugins.names("drafter").count("ngram") == 1, "the shell can still complete names"

    def test_the_same_class_twice_is_no_clash(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        install(tmp_path, "again", "ngram = paceline.drafters.ngram:NgramDrafter")
        install(tmp_path, "other", "another = other.drafters:Other")
        monkeypatch.syspath_prepend(tmp_path)
        assert plugins.find("drafter", "ngram").factory is NgramDrafter
        assert "another" in plugins.names("drafter")


@pytest.mark.usefixtures("foreign")
class TestOthers:
    def test_listing_imports_nothing(self) -> None:
        assert plugins.names("drafter") == ["broken", "foreign", "renamed"]

    def test_they_are_built_in_the_same_way(self) -> None:
        made = plugins.find("drafter", "foreign").make({"depth": 3})
        assert (made.depth, made.width) == (3, 2)

    def test_a_missing_setting(self) -> None:
        with pytest.raises(InvalidInput, match=r"drafter 'foreign': .*'depth'"):
            plugins.find("drafter", "foreign").make({})

    @pytest.mark.parametrize("name", ["broken", "renamed"])
    def test_one_that_cannot_be_imported(self, name: str) -> None:
        with pytest.raises(PacelineError, match=r"cannot be imported.*reinstall") as caught:
            plugins.find("drafter", name)
        assert not isinstance(caught.value, UnknownName)


def test_finding_one_imports_its_module_alone() -> None:
    code = (
        "import sys\n"
        "from paceline.generate import plugins\n"
        "plugins.find('drafter', 'ngram')\n"
        "assert 'paceline.drafters.ngram' in sys.modules\n"
        "assert 'paceline.drafters.model' not in sys.modules\n"
        "assert 'transformers' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_entry_points_are_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[None] = []
    every = plugins.entry_points()

    def counted() -> EntryPoints:
        reads.append(None)
        return every

    monkeypatch.setattr(plugins, "entry_points", counted)
    plugins.forget()
    for _ in range(3):
        plugins.find("drafter", "ngram").make({})
        plugins.find("verifier", "token").make({})
        plugins.names("controller")
    assert len(reads) == 1
    with pytest.raises(UnknownName):
        plugins.find("drafter", "no-such")
    assert len(reads) == 2, "a package may have been installed since"


def test_a_package_installed_meanwhile_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UnknownName):
        plugins.find("drafter", "late")
    install(tmp_path, "late", "late = paceline.drafters.ngram:NgramDrafter")
    assert plugins.find("drafter", "late").factory is NgramDrafter
