"""Reports: one document, shown on a terminal, as Markdown, or as one HTML file with its plots."""

from paceline.report.blocks import (
    Block,
    Code,
    Definitions,
    Figure,
    Report,
    Section,
    Table,
    Text,
    Verdict,
)
from paceline.report.environment import environment
from paceline.report.files import Outputs
from paceline.report.html import to_html
from paceline.report.markdown import to_markdown

__all__ = [
    "Block",
    "Code",
    "Definitions",
    "Figure",
    "Outputs",
    "Report",
    "Section",
    "Table",
    "Text",
    "Verdict",
    "environment",
    "to_html",
    "to_markdown",
]
