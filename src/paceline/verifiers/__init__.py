"""Verification rules, one per file."""
