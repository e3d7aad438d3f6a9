"""ReDrafter: beam search over a recurrent network that starts from the target's last state.

Source: Cheng et al. 2403.09919.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter
from paceline.drafting.tree_settings import Children, Shape


@dataclass(frozen=True, slots=True)
class RedrafterDrafter(HeadDrafter):
    """Draft with a ReDrafter head.

    The beams share what they have in common, as one tree. They are chosen, not drawn, at any
    temperature: which of them survive depends on their own tokens, and only choices that draw
    nothing may do so (rule 2 of `core.protocols`). For drawn tokens set `children="sampled"` and
    another shape, such as "dynamic" or "chain". The paper's 10 beams of 4 drafted tokens are
    `width=10, max_nodes=40` with a draft length of 4.

    Args:
        head: a ReDrafter head, or its path as the option `draft_head`.
        shape, children: as of every head, with other defaults.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.
    """

    name: ClassVar[str] = "redrafter"

    head: Head = field(repr=False)
    shape: Shape = field(default="beam", kw_only=True)
    children: Children = field(default="chosen", kw_only=True)
