"""Verification rules: one rule, one file, each a pure function of p, q and the noise."""
