"""Verification rules, one rule a file."""
