"""Multi-token prediction: a module that the model itself was trained with drafts the next tokens.

Sources: DeepSeek-V3 2412.19437, section 2.2; FastMTP 2509.18362, which runs one module again on its
own output.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from paceline.drafting.heads.drafter import HeadDrafter


@dataclass(frozen=True, slots=True)
class MtpDrafter(HeadDrafter):
    """Draft with an MTP module; see `HeadDrafter` for the settings.

    A level takes one pass of the module, which is one layer and the model's output head.

    Example:
        >>> from paceline.models.heads import load_head
        >>> head = load_head("models/mimo-7b", model.target.info)  # doctest: +SKIP
        >>> drafter = MtpDrafter(head, shape="chain")  # doctest: +SKIP
    """

    name: ClassVar[str] = "mtp"
