import sys
from importlib.metadata import EntryPoint

import pytest

from paceline.cli.describe import describe

SOURCE = '''
"""Draft by magic: two words a time. More of it.

And more.
"""
raise ImportError("this module must not be imported")

class Other:
    """Not this one."""

class Magic:
    """A class.

    Args:
        wand: what is waved,
            with both hands.
        spell: a text.
        size: has a default.

    Raises:
        InvalidInput: wand: broken.
    """

    name: ClassVar[str] = "magic"
    needs: ClassVar[frozenset[str]] = frozenset({"hidden", Need.TOP_LOGITS, Hidden((2, 4))})
    exact: ClassVar[bool] = False
    wand: Wand = field(repr=False)
    spell: str
    size: int = 3
    others: list = field(default_factory=list)
    state: int = field(init=False)
'''


def point(value):
    return EntryPoint("magic", value, "paceline.drafters")


@pytest.fixture
def package(tmp_path, monkeypatch):
    folder = tmp_path / "a_third_party" / "inner"
    folder.mkdir(parents=True)
    for init in (folder.parent, folder):
        (init / "__init__.py").write_text("raise ImportError('not to be imported')")
    (folder / "magic.py").write_text(SOURCE)
    (folder / "bare.py").write_text("class Magic:\n    '''Only the class speaks. Twice.'''")
    monkeypatch.syspath_prepend(tmp_path)


@pytest.mark.usefixtures("package")
def test_a_plug_in_is_described_without_being_imported():
    found = describe(point("a_third_party.inner.magic:Magic"))
    assert found.name == "magic"
    assert found.source == "a_third_party.inner.magic:Magic"
    assert found.summary == "Draft by magic: two words a time."
    assert found.settings == (("wand", "what is waved, with both hands."), ("spell", "a text."))
    assert sorted(found.needs) == ["hidden", "hidden states", "top_logits"]
    assert found.exact is False
    assert not any(name.startswith("a_third_party") for name in sys.modules)


@pytest.mark.usefixtures("package")
def test_a_class_speaks_where_its_module_does_not():
    found = describe(point("a_third_party.inner.bare:Magic"))
    assert found.summary == "Only the class speaks."
    assert (found.settings, found.needs, found.exact) == ((), (), None)


@pytest.mark.usefixtures("package")
@pytest.mark.parametrize(
    "value",
    [
        "a_third_party.inner.magic:Missing",
        "a_third_party.missing:Magic",
        "no_such_package:Magic",
        "sys:Magic",
        "_json:Magic",
    ],
)
def test_what_cannot_be_read_is_still_listed(value):
    found = describe(point(value))
    assert (found.name, found.source, found.summary) == ("magic", value, "")
