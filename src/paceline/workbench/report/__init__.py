"""Reports: one document, shown on a terminal, as Markdown, or as one HTML file with its plots."""

from paceline.workbench.report.blocks import (
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
from paceline.workbench.report.files import Outputs
from paceline.workbench.report.html import to_html
from paceline.workbench.report.markdown import to_markdown

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
    "to_html",
    "to_markdown",
]
