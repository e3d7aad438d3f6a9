"""The names that users import, pinned: a change here is a change for them."""

import subprocess
import sys

import pytest

import paceline


def test_the_names() -> None:
    assert paceline.__all__ == [
        "Engine",
        "Generation",
        "LanguageModel",
        "PacelineError",
        "Recording",
        "SamplingParams",
        "load",
        "load_draft",
        "load_head",
        "read_trace",
        "speculate",
    ]
    assert set(paceline.__all__) <= set(dir(paceline))


@pytest.mark.parametrize("name", paceline.__all__)
def test_each_is_there_and_documented(name: str) -> None:
    member = getattr(paceline, name)
    assert member.__module__ == paceline._HOME[name]
    assert member.__doc__


def test_an_unknown_name() -> None:
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        paceline.lod  # noqa: B018


def test_the_import_costs_nothing() -> None:
    code = (
        "import sys, paceline\n"
        "from paceline.generate import plugins\n"
        "assert plugins.names('drafter')\n"
        "heavy = {'torch', 'transformers', 'numpy', 'gguf', 'rich', 'typer'} & sys.modules.keys()\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
