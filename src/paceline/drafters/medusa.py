"""Heads on the target's last state, one for each of the next tokens: Medusa.

None of them sees what the others propose, so a tree takes the product of their probabilities for
that of a path.

Source: Cai et al. 2401.10774, sections 3.1 (heads) and 3.3 (trees).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class MedusaDrafter(HeadDrafter):
    """Draft with Medusa heads.

    All levels are computed at once, so a tree costs no more to draft than a chain. The fixed trees
    of the paper are `shape="static"` with its `paths`; "dynamic" takes the most probable nodes.

    Args:
        head: a Medusa head, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.
    """

    name: ClassVar[str] = "medusa"

    head: Head = field(repr=False)
