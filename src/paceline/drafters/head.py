"""A trained head, of whatever kind the file says.

By name, in an option, it stands for the drafter of the head: `medusa`, for example.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class AnyHeadDrafter(HeadDrafter):
    """Draft with a head of any kind.

    Args:
        head: a trained head of any kind, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.
    """

    name: ClassVar[str] = "head"
    takes_any_head: ClassVar[bool] = True

    head: Head = field(repr=False)
