# SPDX-License-Identifier: Apache-2.0
"""Renders configurations as text."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path

from rlrun.config.diff import as_overrides, diff
from rlrun.config.load import Loaded
from rlrun.config.paths import display, recipes_dir
from rlrun.config.recipes import RecipeInfo, get_recipe, list_recipes
from rlrun.config.values import shown
from rlrun.errors import ConfigError, Problem

WIDTH = 80
"""Columns of the list of recipes."""


def origin_text(loaded: Loaded) -> str:
    """A line per key: key, value as written, layer, file and line or flag."""
    rows = [
        (key, shown(origin.value), origin.kind.value, origin.where)
        for key, origin in loaded.origins.items()
    ]
    return _table(("key", "value", "from", "where"), rows)


def diff_text(left: str, right: str, *, config_dir: Path | None = None) -> str:
    """A line per key whose resolved values differ.

    Args:
        left: The folder of a run, a recipe's file or name, or overrides separated by spaces.
        right: Likewise.
        config_dir: A folder with further recipes and groups.

    Raises:
        ConfigError: One of the two is not valid.
    """
    found = diff(as_overrides(left, config_dir), as_overrides(right, config_dir), config_dir)
    if not found:
        return "no differences"
    return _table(("key", left, right), [(d.key, d.left, d.right) for d in found])


def recipes_text(name: str | None = None, *, config_dir: Path | None = None) -> str:
    """All recipes, each with the first sentence of its header, or one recipe's file.

    Raises:
        ConfigError: There is no recipe of that name.
    """
    if name is not None:
        path = get_recipe(name, config_dir).path
        try:
            return path.read_text(encoding="utf-8").rstrip("\n")
        except UnicodeDecodeError as error:
            what = f"is not UTF-8 (byte {error.start})"
            raise ConfigError([Problem(display(path), what, "Save it as UTF-8")]) from error
    infos = list_recipes(config_dir)
    margin = 2 + max(len(info.name) for info in infos)
    return "\n".join(
        textwrap.fill(
            _what_it_is(info),
            WIDTH,
            initial_indent=info.name.ljust(margin),
            subsequent_indent=" " * margin,
            break_on_hyphens=False,
        )
        for info in infos
    )


def _what_it_is(info: RecipeInfo) -> str:
    """The first sentence of the header, and of a recipe that is not ours the file."""
    paragraph = " ".join(info.header.partition("\n\n")[0].split())
    sentence, stop, _ = paragraph.partition(". ")
    text = sentence + stop.strip()
    return text if info.path.parent == recipes_dir() else f"{text} ({display(info.path)})"


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (head, *rows)
    ]
    return "\n".join(lines)
