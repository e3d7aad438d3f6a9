"""EAGLE: a head with a layer of its own, which is fed the target's states, and then its own output.

Sources: EAGLE 2401.15077 (static trees), EAGLE-2 2406.16858 (dynamic trees), EAGLE-3 2503.01840
(states of several layers, a vocabulary of its own), EAGLE-3.1 2605.09992 (more norms), P-EAGLE
2602.01469 (all tokens in one pass).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class EagleDrafter(HeadDrafter):
    """Draft with an EAGLE head of any generation.

    A draft takes one pass of the head for each level, over all nodes of the level that get
    children; P-EAGLE takes one pass for all. After a round the head goes once over the tokens that
    became final, with the target's own states. EAGLE-2's tree is `shape="dynamic"`, with
    `top_k=10, max_nodes=59` as in the paper for large models.

    Args:
        head: an EAGLE head of any generation, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("heads/eagle3", model.target.info)  # doctest: +SKIP
        >>> drafter = EagleDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "eagle"

    head: Head = field(repr=False)
