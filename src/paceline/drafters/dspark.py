"""DSpark: a head that drafts a block of tokens in one pass over the target's states.

Source: 2607.05147.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class DsparkDrafter(HeadDrafter):
    """Draft with a DSpark head.

    Args:
        head: a DSpark head, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("heads/dspark", model.target.info)  # doctest: +SKIP
        >>> drafter = DsparkDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "dspark"

    head: Head = field(repr=False)
