"""Published checks for third-party plug-ins."""

from paceline.testing.drafters import DrafterRule, check_drafter
from paceline.testing.targets import TargetRule, check_target

__all__ = ["DrafterRule", "TargetRule", "check_drafter", "check_target"]
