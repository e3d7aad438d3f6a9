"""Puts the lesson page into the documentation, as the one file that `paceline lesson` writes."""

from __future__ import annotations

from typing import Any

from mkdocs.structure.files import File

from paceline.lesson import build_lesson


def on_files(files: Any, config: Any) -> Any:
    """See the hooks of mkdocs."""
    files.append(File.generated(config, "speculative-decoding.html", content=build_lesson()))
    return files
