"""Draft heads on disk: a file or a folder becomes a head, whatever its format; see `load_head`."""

from paceline.models.heads.loading import load_head

__all__ = ["load_head"]
