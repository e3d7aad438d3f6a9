"""Prompts and recorded answers from files, and methods to run on them."""

from paceline.workbench.workload.files import read_items, read_records, read_texts
from paceline.workbench.workload.items import Item, records, select, to_json

__all__ = ["Item", "read_items", "read_records", "read_texts", "records", "select", "to_json"]
