"""The description of a registered plug-in, read from its source without importing it.

Importing a drafter imports torch, which takes seconds; listing names should not.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from importlib.util import find_spec
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Description:
    """A plug-in in a list.

    Args:
        name: the name under which it is registered.
        source: the class, as named by the entry point.
        summary: the first sentence of the module's docstring, else of the class's; empty if neither
            can be read.
        settings: the required settings, and the docstring of each.
        needs: what a drafter needs from the target beyond tokens.
        exact: whether the class declares itself exact (rules do); None if it declares nothing.
    """

    name: str
    source: str
    summary: str = ""
    settings: tuple[tuple[str, str], ...] = ()
    needs: tuple[str, ...] = ()
    exact: bool | None = None


def describe(point: EntryPoint) -> Description:
    """Describe the class behind an entry point."""
    module = _module(point.module)
    found = _class(module, point.attr)
    if found is None:
        return Description(point.name, point.value)
    docstring = ast.get_docstring(found) or ""
    values = {
        statement.target.id: statement
        for statement in found.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    }
    exact, own_name = _constant(values.get("exact")), _constant(values.get("name"))
    summary = _summary(ast.get_docstring(module) or docstring)
    if isinstance(own_name, str) and own_name != point.name:
        summary = f"Another name of {own_name}."
    return Description(
        name=point.name,
        source=point.value,
        summary=summary,
        settings=tuple(
            (name, _argument(docstring, name))
            for name, statement in values.items()
            if _is_required(statement)
        ),
        needs=_words(values.get("needs")),
        exact=exact if isinstance(exact, bool) else None,
    )


def _module(name: str) -> ast.Module:
    """The source of a module, parsed; an empty one if it cannot be read."""
    file = _source_file(name)
    return ast.parse("" if file is None else file.read_bytes())


def _class(module: ast.Module, name: str) -> ast.ClassDef | None:
    for statement in module.body:
        if isinstance(statement, ast.ClassDef) and statement.name == name:
            return statement
    return None


def _source_file(module: str) -> Path | None:
    """The file of a module. Only its top-level package is looked up, which imports nothing."""
    top, *inner = module.split(".")
    spec = find_spec(top)
    if spec is None:
        return None
    if not inner:
        return _existing(Path(spec.origin)) if spec.origin else None
    for location in spec.submodule_search_locations or ():
        path = Path(location, *inner)
        if file := _existing(path.with_suffix(".py")) or _existing(path / "__init__.py"):
            return file
    return None


def _existing(path: Path) -> Path | None:
    return path if path.suffix == ".py" and path.is_file() else None


def _summary(docstring: str) -> str:
    """The first sentence.

    >>> _summary("Draft what followed, twice say. The rest.")
    'Draft what followed, twice say.'
    """
    paragraph = " ".join(docstring.split("\n\n")[0].split())
    return re.split(r"(?<=\.)\s+(?=[A-Z])", paragraph)[0]


def _argument(docstring: str, name: str) -> str:
    """The description of `name` in the `Args:` section of a docstring."""
    entry = re.search(rf"^    {re.escape(name)}: (.*(?:\n {{8}}.*)*)", docstring, re.MULTILINE)
    return " ".join(entry[1].split()) if entry else ""


def _is_required(statement: ast.AnnAssign) -> bool:
    """Whether a dataclass field has no default."""
    if "ClassVar" in ast.unparse(statement.annotation):
        return False
    value = statement.value
    if not isinstance(value, ast.Call):
        return value is None
    given = {keyword.arg: keyword.value for keyword in value.keywords}
    in_constructor = not (
        isinstance(init := given.get("init"), ast.Constant) and init.value is False
    )
    return in_constructor and not given.keys() & {"default", "default_factory"}


def _constant(statement: ast.AnnAssign | None) -> Any:
    """The value of a field that is a plain constant; None if it is not."""
    value = None if statement is None else statement.value
    return value.value if isinstance(value, ast.Constant) else None


def _words(statement: ast.AnnAssign | None) -> tuple[str, ...]:
    """The strings, names and records (such as `Hidden((2, 4))`) in a set."""
    if statement is None or statement.value is None:
        return ()
    found = []
    for node in ast.walk(statement.value):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.Attribute):
            found.append(node.attr.lower())
        elif isinstance(node, ast.Call) and getattr(node.func, "id", None) == "Hidden":
            found.append("hidden states")
    return tuple(found)
