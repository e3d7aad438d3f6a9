"""Published checks for third-party plug-ins."""

from paceline.testing.drafters import DrafterRule, check_drafter

__all__ = ["DrafterRule", "check_drafter"]
