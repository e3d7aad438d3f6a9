"""Search for settings of drafters that depend on the model."""

from paceline.workbench.tune.evaluate import (
    Costs,
    Sample,
    draft_cost,
    measure_costs,
    prefix_rates,
    record,
)
from paceline.workbench.tune.search import Found, Score, search

__all__ = [
    "Costs",
    "Found",
    "Sample",
    "Score",
    "draft_cost",
    "measure_costs",
    "prefix_rates",
    "record",
    "search",
]
