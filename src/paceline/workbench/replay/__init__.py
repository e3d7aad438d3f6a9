"""Acceptance without generating: recorded text is run through target and draft models."""
