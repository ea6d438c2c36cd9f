# SPDX-License-Identifier: Apache-2.0
"""Compares two configurations key by key."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.config.load import Loaded, load
from rlrun.config.paths import expand, is_file
from rlrun.config.recipes import find_recipe, no_recipe, recipe_folders
from rlrun.config.values import is_interpolated, shown
from rlrun.errors import ConfigError, Problem


@dataclass(frozen=True, slots=True)
class Difference:
    """A key whose values differ, as text; "-" where a side does not have the key."""

    key: str
    left: str
    right: str


def diff(
    left: Sequence[str], right: Sequence[str], config_dir: Path | None = None
) -> list[Difference]:
    """The keys whose resolved values differ between two lists of overrides.

    Choices of slots come first, then keys in the order of the configuration. A value that came from
    an interpolation is shown as it was written.

    Raises:
        ConfigError: One of the two is not valid.
    """
    a, b = load(left, config_dir), load(right, config_dir)
    slots = [
        Difference(slot, name, b.variants[slot])
        for slot, name in a.variants.items()
        if name != b.variants[slot]
    ]
    keys = list(dict.fromkeys([*a.values, *b.values]))
    return slots + [
        Difference(key, _text(a, key), _text(b, key))
        for key in keys
        if key not in a.values or key not in b.values or a.values[key] != b.values[key]
    ]


def as_overrides(text: str, config_dir: Path | None = None) -> list[str]:
    """What one side of a comparison stands for.

    Args:
        text: The folder of a run, a recipe's file or name, or overrides separated by spaces.
        config_dir: As for load.

    Raises:
        ConfigError: It is a single name, and no recipe has it.
    """
    folder = expand(text)
    if is_file(folder / "config.yaml"):
        return [f"+recipe={folder / 'config.yaml'}"]
    if find_recipe(text, recipe_folders(config_dir)) is not None:
        return [f"+recipe={text}"]
    try:
        words = shlex.split(text)
    except ValueError as error:
        what = f"cannot be split into overrides: {error}"
        raise ConfigError([Problem(text, what, "Close the quotes")]) from error
    if len(words) == 1 and "=" not in words[0]:
        raise ConfigError([no_recipe(words[0], words[0], config_dir)])
    return words


def _text(loaded: Loaded, key: str) -> str:
    if key not in loaded.values:
        return "-"
    raw = loaded.origins[key].value
    return shown(raw if is_interpolated(raw) else loaded.values[key])
