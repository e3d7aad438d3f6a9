"""Medusa: heads on the target's final state, one a place, none of which sees what another says.

Source: Cai et al. 2401.10774. The tree is the paper's: a node's probability is taken to be the
product of the heads' own, which are marginals.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class MedusaDrafter(HeadDrafter):
    """Draft with Medusa heads; see `HeadDrafter` for the settings.

    A draft costs one product for the blocks and output layer of each level, whatever the number of
    nodes. The fixed trees of the paper are `shape="static"` with their `paths`.

    Example:
        >>> from paceline.models.heads import load_head
        >>> drafter = MedusaDrafter(load_head("heads/medusa"), top_k=3)  # doctest: +SKIP
    """

    name: ClassVar[str] = "medusa"
