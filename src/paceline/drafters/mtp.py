"""Multi-token prediction: a module that the model itself was trained with drafts the next tokens.

Sources: DeepSeek-V3 2412.19437, section 2.2; FastMTP 2509.18362, which runs one module again on its
own output.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

from paceline.drafting.heads.contract import Head
from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class MtpDrafter(HeadDrafter):
    """Draft with an MTP module.

    A level takes one pass of the module, which is one layer and the model's output head.

    Args:
        head: a model's MTP module, or its path as the option `draft_head`.

    For the other settings see `drafting.heads.drafter.HeadDrafter`.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("models/mimo-7b", model.target.info)  # doctest: +SKIP
        >>> drafter = MtpDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "mtp"

    head: Head = field(repr=False)
