# SPDX-License-Identifier: Apache-2.0
"""Finds the variants of each slot and tells Hydra their names."""

from __future__ import annotations

import importlib
import importlib.util
from functools import cache
from pathlib import Path

from rlrun.config.order import Announced, announce
from rlrun.config.paths import conf_dir
from rlrun.interfaces import REGISTRY, SLOTS

SCHEMA_SUFFIX = "_schema"
RECIPES = "recipes"
"""The folder of a user's --config-dir that holds recipes rather than choices of a group."""


@cache
def discover() -> None:
    """Imports the module of every variant: rlrun/SLOT/NAME.py for conf/SLOT/NAME.yaml.

    Other modules of a slot's package are not imported, since they may need torch. Each variant gets
    an empty node SLOT/NAME_schema in Hydra's store. It marks which class a section has; values are
    checked by rlrun.config itself, because Hydra would stop at the first mistake.
    """
    for slot in SLOTS:
        for file in sorted((conf_dir() / slot).glob("*.yaml")):
            # A name such as async cannot be a module; async_.py is its file.
            for module in (f"rlrun.{slot}.{file.stem}", f"rlrun.{slot}.{file.stem}_"):
                if importlib.util.find_spec(module) is not None:
                    importlib.import_module(module)
    for name in REGISTRY:
        slot, _, variant = name.partition("/")
        announce(Announced(slot, f"{variant}{SCHEMA_SUFFIX}", package=None))


def config_groups(folders: list[Path]) -> dict[str, list[str]]:
    """The choices of every config group, such as "loss" and "policy/model", in some folders."""
    groups: dict[str, set[str]] = {}
    for folder in folders:
        for file in [*folder.glob("*/*.yaml"), *folder.glob("*/*/*.yaml")]:
            group = file.parent.relative_to(folder).as_posix()
            if group != RECIPES:
                groups.setdefault(group, set()).add(file.stem)
    return {group: sorted(choices) for group, choices in groups.items()}
