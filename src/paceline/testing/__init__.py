"""Public checks for third-party plug-ins."""

from paceline.testing.controllers import ControllerRule, check_controller
from paceline.testing.drafters import DrafterRule, check_drafter
from paceline.testing.targets import TargetRule, check_target

__all__ = [
    "ControllerRule",
    "DrafterRule",
    "TargetRule",
    "check_controller",
    "check_drafter",
    "check_target",
]
