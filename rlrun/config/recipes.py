# SPDX-License-Identifier: Apache-2.0
"""Finds recipes: those that come with rlrun, those of a user's folder, and single files."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.paths import conf_dir, expand, is_file, recipes_dir
from rlrun.config.suggest import nearest
from rlrun.config.variants import RECIPES
from rlrun.config.yaml_file import read_yaml
from rlrun.errors import ConfigError, Problem

NIGHTLY = ".nightly.yaml"
"""How the file ends that says, beside a recipe, what a nightly run of it must show."""

_RUN_STAMP = re.compile(r"\d{8}-\d{6}.*")
_SAVED_BY = re.compile(r"The resolved run of ([\w+-][\w.+-]*)\.$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class RecipeInfo:
    """A recipe and what its header says."""

    name: str
    path: Path
    header: str


def recipe_folders(config_dir: Path | None) -> list[Path]:
    """Where recipes are looked up by name, the user's folder first."""
    own = [] if config_dir is None else [config_dir / RECIPES, config_dir]
    return [*own, recipes_dir()]


def is_overlay(path: Path) -> bool:
    """Whether a file is no recipe, but what a recipe says of a scale: RECIPE.SCALE.yaml."""
    scale = path.stem.rpartition(".")[2]
    return "." in path.stem and (conf_dir() / "scale" / f"{scale}.yaml").is_file()


def recipe_files(folder: Path) -> list[Path]:
    """The recipes in a folder, not what lies beside them."""
    return [
        path
        for path in folder.glob("*.yaml")
        if not path.name.endswith(NIGHTLY) and not is_overlay(path)
    ]


def list_recipes(config_dir: Path | None = None) -> list[RecipeInfo]:
    """All recipes that have a name, in alphabetical order."""
    found = {
        path.stem: RecipeInfo(path.stem, path, read_yaml(path).header)
        for folder in reversed(recipe_folders(config_dir))
        for path in recipe_files(folder)
    }
    return [found[name] for name in sorted(found)]


def get_recipe(name: str, config_dir: Path | None = None) -> RecipeInfo:
    """The recipe of a name or file.

    Raises:
        ConfigError: There is none.
    """
    path = find_recipe(name, recipe_folders(config_dir))
    if path is None:
        raise ConfigError([no_recipe(name, name, config_dir)])
    return RecipeInfo(path.stem, path, read_yaml(path).header)


def no_recipe(where: str, name: str, config_dir: Path | None) -> Problem:
    """What to say about a recipe that does not exist."""
    names = nearest(name, [info.name for info in list_recipes(config_dir)])
    remedy = f"Give a file that ends in .yaml or one of {', '.join(names)}"
    return Problem(where, f"there is no recipe {name}", remedy)


def find_recipe(name: str, folders: list[Path]) -> Path | None:
    """The file of a recipe given by name, or by a path that ends in .yaml or .yml."""
    if f"{name}.yaml".endswith(NIGHTLY) or name.endswith(NIGHTLY):
        return None
    if name.endswith((".yaml", ".yml")):
        path = expand(name)
        return path if is_file(path) else None
    if Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    files = [folder / f"{name}.yaml" for folder in folders]
    return next((file for file in files if is_file(file) and not is_overlay(file)), None)


def recipe_name(path: Path) -> str:
    """What runs of the recipe are called: its file name, or that of the run it was saved by."""
    path = path.resolve()
    if path.name != "config.yaml":
        return path.stem
    saved_by = _SAVED_BY.match(read_yaml(path).header)
    if saved_by is not None:
        return saved_by[1]
    # A run's folder is RECIPE/DATE-TIME unless the user named it.
    folder = path.parent.parent if _RUN_STAMP.fullmatch(path.parent.name) else path.parent
    return folder.name or "run"
