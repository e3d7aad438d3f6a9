"""The lesson: a page on which speculative decoding can be touched, seen and checked."""

from paceline.lesson.build import Asset, build_lesson, served_lesson

__all__ = ["Asset", "build_lesson", "served_lesson"]
