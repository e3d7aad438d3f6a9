"""DFlash: a head that drafts a block of tokens in one pass over the target's states.

Source: 2602.06036.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class DflashDrafter(HeadDrafter):
    """Draft with a DFlash head.

    Args:
        head: a DFlash head, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("heads/dflash", model.target.info)  # doctest: +SKIP
        >>> drafter = DflashDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "dflash"

    head: Head = field(repr=False)
