"""Measure, predict, choose, prove."""
