"""How an answer is shown on a terminal: pure functions of the results of the Python API."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

from rich.text import Text

from paceline.cli.terminal import ACCEPTED, printable


class Piece(Protocol):
    """See `api.Piece`."""

    @property
    def text(self) -> str:
        """The text of one token."""
        ...

    @property
    def drafted(self) -> bool:
        """Whether it is an accepted draft token."""
        ...


class Generation(Protocol):
    """The part of `api.Generation` that a summary shows."""

    @property
    def token_ids(self) -> tuple[int, ...]:
        """The answer."""
        ...

    @property
    def finish_reason(self) -> str:
        """`stop` or `length`."""
        ...

    @property
    def decode_seconds(self) -> float:
        """The time of decoding."""
        ...

    @property
    def tokens_per_second(self) -> float | None:
        """The speed of decoding."""
        ...

    @property
    def spec(self) -> dict[str, Any]:
        """The acceptance figures."""
        ...


def answer_text(pieces: Iterable[Piece]) -> Text:
    """The text of an answer, with accepted draft tokens coloured.

    >>> from types import SimpleNamespace as Piece
    >>> answer_text([Piece(text="a", drafted=False), Piece(text=" b", drafted=True)]).markup
    'a[green] b[/green]'
    """
    text = Text()
    for piece in pieces:
        text.append(printable(piece.text), style=ACCEPTED if piece.drafted else None)
    return text


def speed(generation: Generation) -> str:
    """The number of tokens, and the speed."""
    count = len(generation.token_ids)
    rate = generation.tokens_per_second
    took = f" in {generation.decode_seconds:.2f} s" if rate is not None else ""
    pace = f", {rate:.1f} tokens/s" if rate is not None else ""
    return f"{count} token{'' if count == 1 else 's'}{took}{pace}"


def acceptance(spec: dict[str, Any]) -> str:
    """The outcome of the drafts, in words."""
    drafter, rate = spec["drafter"], spec["draft_acceptance_rate"]
    if rate is None:
        return f"nothing was drafted ({drafter})"
    return (
        f"mean acceptance length {spec['mean_acceptance_length']:.2f}, "
        f"acceptance rate {rate:.2f} ({drafter})"
    )


def summary(generation: Generation, *, legend: bool) -> Text:
    """The line below an answer.

    Args:
        generation: the answer.
        legend: explain the colour.
    """
    text = Text(style="dim")
    text.append(f"{speed(generation)}; {acceptance(generation.spec)}")
    if (draft := generation.spec.get("draft")) is not None:
        text.append(f"; draft: {draft}")
    if not generation.spec["exact"]:
        rule = generation.spec["verifier"]
        text.append(f"; not exact: the rule {rule} changes the output distribution")
    if generation.finish_reason == "length":
        text.append("; cut off at the token limit")
    if legend and generation.spec["num_accepted_tokens"]:
        text.append("; ")
        text.append("accepted draft tokens look like this", style=f"not dim {ACCEPTED}")
    return text
