"""Blockwise parallel decoding: the target's last state gives a block of next tokens at once.

Source: Stern et al. 1811.03115.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class BlockwiseDrafter(HeadDrafter):
    """Draft with blockwise heads.

    All levels are computed at once, so a tree costs no more to draft than a chain. The paper's
    blocks are `shape="chain"`. Its criteria for accepting them are rules: `token` (with chains) is
    the exact one; `top-k` and `distance` are not exact.

    Args:
        head: blockwise heads, or their path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.
    """

    name: ClassVar[str] = "blockwise"

    head: Head = field(repr=False)
