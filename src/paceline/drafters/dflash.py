"""DFlash: a head that drafts a block of tokens in one pass over the target's states.

Source: 2602.06036.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class DflashDrafter(HeadDrafter):
    """Draft with a DFlash head; see `HeadDrafter` for the settings.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("heads/dflash", model.target.info)  # doctest: +SKIP
        >>> drafter = DflashDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "dflash"
