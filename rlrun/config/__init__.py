# SPDX-License-Identifier: Apache-2.0
"""Composes, checks and explains configurations."""

from rlrun.config.diff import Difference, as_overrides, diff
from rlrun.config.duration import parse_duration
from rlrun.config.json_schema import schema_json
from rlrun.config.load import Loaded, load, load_section
from rlrun.config.origin import Origin, OriginKind
from rlrun.config.paths import conf_dir, recipes_dir
from rlrun.config.recipes import RecipeInfo, list_recipes

__all__ = [
    "Difference",
    "Loaded",
    "Origin",
    "OriginKind",
    "RecipeInfo",
    "as_overrides",
    "conf_dir",
    "diff",
    "list_recipes",
    "load",
    "load_section",
    "parse_duration",
    "recipes_dir",
    "schema_json",
]
