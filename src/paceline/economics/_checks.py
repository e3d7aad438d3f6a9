"""Number checks that the modules of this package share. NaN fails all of them."""

from __future__ import annotations

import math

from paceline.errors import InvalidInput


def check_probability(name: str, value: float) -> None:
    if not 0.0 <= value <= 1.0:
        raise InvalidInput(f"expected {name} to be from 0 to 1, got {value}; 80 % is 0.8")


def check_positive(name: str, value: float) -> None:
    if not 0.0 < value < math.inf:
        raise InvalidInput(f"expected {name} to be a finite number above 0, got {value}")


def check_not_negative(name: str, value: float) -> None:
    if not 0.0 <= value < math.inf:
        raise InvalidInput(f"expected {name} to be a finite number, 0 or more, got {value}")


def checked_count(num_draft_tokens: int) -> int:
    if num_draft_tokens < 0:
        raise InvalidInput(
            f"expected the number of draft tokens to be 0 or more, got {num_draft_tokens}; "
            "0 is plain decoding"
        )
    return num_draft_tokens
