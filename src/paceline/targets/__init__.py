"""Targets: models and their caches behind one contract."""
