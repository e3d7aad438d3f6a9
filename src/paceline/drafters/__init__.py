"""Drafters: one method, one file."""
