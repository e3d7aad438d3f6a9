"""A small network that starts from the target's last state and takes in token by token.

It is called MLPSpeculator.

Source: Wertheimer et al. 2404.19124, section 2.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class MlpDrafter(HeadDrafter):
    """Draft with an MLPSpeculator.

    A level costs a product over all nodes that get children.

    Args:
        head: an MLPSpeculator, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.
    """

    name: ClassVar[str] = "mlp"

    head: Head = field(repr=False)
