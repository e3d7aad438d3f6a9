"""The kinds of drafters that can be trained, by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.train.blockwise_recipe import BlockwiseRecipe
from paceline.train.dflash_recipe import DflashRecipe
from paceline.train.eagle_recipe import EagleRecipe
from paceline.train.hydra_recipe import HydraRecipe
from paceline.train.medusa_recipe import MedusaRecipe
from paceline.train.mtp_recipe import MtpRecipe
from paceline.train.parallel_recipe import ParallelRecipe

_ALL = (
    BlockwiseRecipe,
    DflashRecipe,
    EagleRecipe,
    HydraRecipe,
    MedusaRecipe,
    MtpRecipe,
    ParallelRecipe,
)

RECIPES: Mapping[str, type[Any]] = {one.name: one for one in _ALL}
"""Each is a `recipe.Recipe`."""
