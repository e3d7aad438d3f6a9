"""The documentation of the command line is what the command line is."""

import importlib.util
import re
import shlex
from pathlib import Path

import pytest
from typer.main import get_command

from paceline.cli.main import app

ROOT = Path(__file__).parent.parent.parent
PAGES = [
    "README.md",
    "docs/bench.md",
    "docs/cli.md",
    "docs/recommend.md",
    "docs/replay.md",
    "docs/server.md",
    "docs/training.md",
]


@pytest.fixture(scope="module")
def cli_reference():
    path = ROOT / "scripts" / "cli_reference.py"
    spec = importlib.util.spec_from_file_location("cli_reference", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_reference_is_that_of_the_code(cli_reference):
    page = cli_reference.PAGE.read_text(encoding="utf-8")
    assert page == cli_reference.with_reference(page), "run scripts/cli_reference.py"


def test_the_reference_names_every_option_of_the_help(cli_reference, run):
    reference = cli_reference.reference()
    for command in (
        "demo", "generate", "chat", "serve", "recommend", "bench", "replay", "plan", "audit",
        "drafters", "models",
    ):  # fmt: skip
        options = set(re.findall(r"--[a-z][a-z-]+", run(command, "--help").stdout)) - {"--help"}
        section = re.split(rf"^### paceline {command}$", reference, flags=re.MULTILINE)[1]
        section = re.split(r"^### ", section, flags=re.MULTILINE)[0]
        assert options
        assert options <= set(re.findall(r"--[a-z][a-z-]+", section))


def commands_in(page):
    """Every `paceline ...` line in a page's blocks of shell code."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for block in re.findall(r"```bash\n(.*?)```", text, re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.findall(r"(?:^|\| )(paceline .*)", line):
                words = shlex.split(part, comments=True)[1:]
                yield words[: words.index(">")] if ">" in words else words


@pytest.mark.parametrize("page", PAGES)
def test_commands_in_the_documentation_are_understood(page):
    found = list(commands_in(page))
    for name, *rest in found:
        command = get_command(app).commands[name]
        if rest and rest[0] in getattr(command, "commands", {}):
            command, (name, *rest) = command.commands[rest[0]], rest
        command.make_context(name, list(rest))  # raises where an option does not exist
    assert found


def test_the_printed_plan_in_the_documentation_is_what_is_printed(run):
    page = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    command = "paceline plan --alpha 0.8 --cost 0.05 -k 4"
    shown = page.split(f"{command}\n```\n\n```text\n")[1].split("```")[0]
    printed = run(*command.split()[1:]).stdout
    words = [line.split() for line in shown.splitlines()]
    assert words == [line.split() for line in printed.splitlines()]
