"""A run written down round by round, and read back: the format `paceline.trace/1`.

Source: the format is the project's own; docs/trace.md describes it.
"""

from paceline.trace.lane import Lane
from paceline.trace.reader import Trace, parse_trace, read_trace
from paceline.trace.recording import SCHEMA, LaneRecorder, Recording

__all__ = [
    "SCHEMA",
    "Lane",
    "LaneRecorder",
    "Recording",
    "Trace",
    "parse_trace",
    "read_trace",
]
