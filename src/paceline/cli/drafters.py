"""`paceline drafters`: the registered drafters and rules, without importing them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.table import Table

from paceline.cli import options, terminal
from paceline.cli.describe import Description, describe
from paceline.generate import plugins

DEFAULT_RULE = "token"


def listed(kind: plugins.Kind) -> list[Description]:
    """Every plug-in of a kind, by name."""
    points = plugins.points(kind)
    return [describe(points[name]) for name in sorted(points)]


def is_exact(drafter: Description, rules: Sequence[Description]) -> bool | None:
    """Whether the answers of a drafter follow the target's distribution under the default rule.

    The rule ensures that: whatever a drafter proposes, an exact rule keeps the distribution. A
    drafter that cannot be used with an exact rule may declare so itself.
    """
    default = next((rule.exact for rule in rules if rule.name == DEFAULT_RULE), None)
    return default if drafter.exact is None else drafter.exact and default


def drafters_json(drafters: Sequence[Description], rules: Sequence[Description]) -> dict[str, Any]:
    """Both lists as plain JSON values; `exact` is null if the source does not say."""
    return {
        "drafters": [
            {
                "name": item.name,
                "summary": item.summary,
                "exact": is_exact(item, rules),
                "settings": dict(item.settings),
                "needs": list(item.needs),
                "source": item.source,
            }
            for item in drafters
        ],
        "rules": [
            {
                "name": item.name,
                "summary": item.summary,
                "exact": item.exact,
                "source": item.source,
            }
            for item in rules
        ],
    }


def needed(item: Description) -> str:
    """What a drafter needs, in words."""
    settings = [text or name for name, text in item.settings]
    return "; ".join(part.rstrip(".") for part in (*settings, *item.needs)) or "nothing"


def drafters_table(drafters: Sequence[Description], rules: Sequence[Description]) -> Table:
    """The drafters as a table."""
    table = _table("drafter", "exact", "what it does", "what it needs")
    for item in drafters:
        table.add_row(item.name, _word(is_exact(item, rules)), item.summary, needed(item))
    return table


def rules_table(rules: Sequence[Description]) -> Table:
    """The rules as a table."""
    table = _table("rule", "exact", "what it does")
    for item in rules:
        table.add_row(item.name, _word(item.exact), item.summary)
    return table


def _table(*headers: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for header in headers:
        table.add_column(header, no_wrap=header in ("drafter", "rule", "exact"))
    return table


def _word(exact: bool | None) -> str:
    return {True: "yes", False: "no", None: "?"}[exact]


def drafters(
    as_json: options.AsJson = False,
) -> None:
    """List the drafters, and the rules that verify what they draft."""
    found, rules = listed("drafter"), listed("verifier")
    if as_json:
        terminal.print_json(drafters_json(found, rules))
        return
    console = terminal.out()
    console.print(drafters_table(found, rules))
    console.print("\nUse one with `paceline generate --drafter NAME`.\n")
    console.print(rules_table(rules))
    console.print("\nUse one with `paceline generate --verify NAME`.")
