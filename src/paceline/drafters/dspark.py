"""DSpark: a head that drafts a block of tokens in one pass over the target's states.

Source: 2607.05147.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class DsparkDrafter(HeadDrafter):
    """Draft with a DSpark head; see `HeadDrafter` for the settings.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("heads/dspark", model.target.info)  # doctest: +SKIP
        >>> drafter = DsparkDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "dspark"
