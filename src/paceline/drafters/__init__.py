"""Drafters: one method per file."""
