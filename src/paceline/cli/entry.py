"""The entry point of the process: sets up Ctrl-C handling before anything else is imported."""

from __future__ import annotations

import sys

from paceline.cli import interrupts


def main() -> None:
    """Run the command line of this process."""
    try:
        interrupts.install()
        from paceline.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        interrupts.leave_to_the_system()
