"""Targets: models and their caches with one contract."""
