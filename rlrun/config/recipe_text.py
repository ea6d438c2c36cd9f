# SPDX-License-Identifier: Apache-2.0
"""Writes a resolved run as a recipe that gives the same run again."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from pathlib import Path
from typing import Any

import yaml

from rlrun.config.origin import Origin
from rlrun.config.values import is_interpolated
from rlrun.config.yaml_loader import Loader
from rlrun.interfaces import SLOTS

_LEFT_OUT = ("run_dir",)

PATHS = (
    "policy.model",
    "policy.tokenizer",
    "policy.chat_template",
    "data.train.source",
    "data.validation.source",
    "env.environment",
    "env.reward_function",
)
"""Keys whose text may be the path of a file or folder (or FILE.py:NAME)."""


class _Dumper(yaml.SafeDumper):
    """Quotes exactly what Loader would not read as text."""

    def ignore_aliases(self, data: Any) -> bool:
        """Values that happen to be the same object are written out."""
        return True


_Dumper.yaml_implicit_resolvers = Loader.yaml_implicit_resolvers


def recipe_text(
    recipe: str,
    variants: Mapping[str, str],
    origins: Mapping[str, Origin],
    values: Mapping[str, object],
) -> str:
    """A recipe with all values.

    A value that contains an interpolation is written as it was given, so that nothing from the
    environment gets into the file. A relative path is written as an absolute one: a run is resumed
    from wherever one happens to be.
    """
    defaults: list[object] = [{f"override /{slot}": variants[slot]} for slot in SLOTS]
    tree: dict[str, object] = {"defaults": [*defaults, "_self_"]}
    for key in values:
        if key in _LEFT_OUT:
            continue
        raw = origins[key].value
        *sections, name = key.split(".")
        node = tree
        for section in sections:
            inner = node.setdefault(section, {})
            assert isinstance(inner, dict)
            node = inner
        value = _absolute(values[key]) if key in PATHS else values[key]
        node[name] = raw if is_interpolated(raw) else _plain(value)
    text = yaml.dump(tree, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return f"# The resolved run of {recipe}.\n{text}"


def _absolute(value: object) -> object:
    """The text with its file or folder made absolute, if there is one of that name."""
    if not isinstance(value, str):
        return value
    path, colon, attribute = value.partition(".py:")
    path += colon.removesuffix(":")
    name = f":{attribute}" if colon else ""
    try:
        return f"{Path(path).absolute()}{name}" if path and Path(path).exists() else value
    except (OSError, ValueError):
        # A text too long for a name, such as a chat template given literally.
        return value


def _plain(value: object) -> object:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return value
