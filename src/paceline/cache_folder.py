"""The one folder that holds what can be made again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """Where Paceline keeps what it can make again: `$PACELINE_CACHE`, else `~/.cache/paceline`."""
    return Path(os.environ.get("PACELINE_CACHE") or "~/.cache/paceline").expanduser()
