"""Heads on the target's last state that also read the tokens drafted before: Hydra.

Source: Ankner et al. 2402.05109, section 3.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class HydraDrafter(HeadDrafter):
    """Draft with Hydra heads: Medusa's, which know what was drafted before them.

    A level costs a product over all nodes that get children.

    Args:
        head: a Hydra head, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.
    """

    name: ClassVar[str] = "hydra"

    head: Head = field(repr=False)
