"""The kinds of drafters that can be trained, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.train.eagle_recipe import EagleRecipe
from paceline.train.medusa_recipe import MedusaRecipe

RECIPES: Mapping[str, type[Any]] = {one.name: one for one in (EagleRecipe, MedusaRecipe)}
"""Each is a `recipe.Recipe`."""
