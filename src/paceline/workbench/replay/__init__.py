"""Acceptance without generating: recorded text through target and draft in a few long passes."""
