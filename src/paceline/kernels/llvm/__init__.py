"""Loops compiled for the processor."""
