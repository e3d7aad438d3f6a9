"""Options that several commands take are the same in each."""

import pytest
from typer.main import get_command

import paceline
from paceline.cli import calls, options
from paceline.cli.main import app

LOADING = ("generate", "chat", "recommend", "bench", "replay", "plan", "audit", "tune")
DRAFTING = ("generate", "chat", "audit")
COMPARING = ("recommend", "bench", "replay")


def command(name):
    found = get_command(app).commands[name]
    return getattr(found, "commands", {}).get("layer-skip", found)


def described(name):
    return {
        one.name: (one.opts, one.metavar, one.help, one.rich_help_panel, one.default)
        for one in command(name).params
    }


@pytest.mark.parametrize(
    ("commands", "names"),
    [
        (LOADING, options.LOADED),
        (DRAFTING, options.DRAFTED),
        (COMPARING, options.DRAFT),
        (COMPARING, options.DISTRIBUTION),
        (("generate", "chat"), options.SAMPLED),
    ],
)
def test_a_shared_option_is_the_same_everywhere(commands, names):
    first, *others = map(described, commands)
    assert all({name: other[name] for name in names} == {name: first[name] for name in names}
               for other in others)  # fmt: skip
    assert all(first[name][2] for name in names)


@pytest.mark.parametrize("name", options.LOADED)
def test_what_a_command_loads_with_by_default_is_what_python_does(name):
    import inspect

    assert options.default(name) == inspect.signature(paceline.load).parameters[name].default


def test_a_draft_model_goes_where_its_target_is(monkeypatch):
    seen = {}
    monkeypatch.setattr("paceline.generate.api.load_draft", lambda *a, **b: seen.update(a=a, **b))
    loading = {name: options.default(name) for name in options.LOADED}
    loading |= {"device": "cuda:1", "allow_pickle": True, "storage": "plain", "adapter": "mine"}
    calls.load_draft("small", "int4", 8000, loading, print)
    assert seen == {
        "a": ("small", "int4", 8000),
        "device": "cuda:1",
        "allow_pickle": True,
        "trust_remote_code": False,
        "progress": print,
    }
