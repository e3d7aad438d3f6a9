"""Writes the reference of the command line into docs/cli.md, from the options themselves.

python scripts/cli_reference.py
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from paceline.cli.main import app

PAGE = Path(__file__).parent.parent / "docs" / "cli.md"
BEGIN = "<!-- reference: begin (scripts/cli_reference.py writes it) -->"
END = "<!-- reference: end -->"


def reference() -> str:
    """The reference of every command, in Markdown."""
    root = get_command(app)
    blocks = ["### paceline", *_blocks(root)]
    for path, command in _commands(root, "paceline"):
        blocks += [f"### {path}", str(command.help), *_blocks(command)]
    return "\n\n".join(blocks)


def with_reference(page: str) -> str:
    """The page with its reference replaced by that of the code."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n\n{reference()}\n\n{END}{after}"


def _commands(group: Any, path: str) -> Iterator[tuple[str, Any]]:
    for name, command in getattr(group, "commands", {}).items():
        yield f"{path} {name}", command
        yield from _commands(command, f"{path} {name}")


def _blocks(command: Any) -> Iterator[str]:
    """A list of options for each panel of the help, under its name."""
    panels: dict[str | None, list[Any]] = {}
    for option in command.params:
        panels.setdefault(getattr(option, "rich_help_panel", None), []).append(option)
    for panel, options in panels.items():
        if panel is not None:
            yield f"**{panel}**"
        yield "\n".join(map(_entry, options))


def _entry(option: Any) -> str:
    names = [*option.opts, *option.secondary_opts]
    if not names[0].startswith("-"):
        return f"- `{option.name.upper()}`: {option.help}"
    form = f" `{option.metavar}`" if option.metavar else ""
    notes = [str(option.help)]
    if option.required:
        notes.append("Required.")
    elif option.default is not None and option.default is not False:
        notes.append(f"Default: `{option.default}`.")
    if option.envvar:
        notes.append(f"Environment: `{option.envvar}`.")
    return f"- {', '.join(f'`{name}`' for name in names)}{form}: {' '.join(notes)}"


if __name__ == "__main__":
    PAGE.write_text(with_reference(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
