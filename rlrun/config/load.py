# SPDX-License-Identifier: Apache-2.0
"""From overrides to a finished, checked RunConfig, or to everything that is wrong with it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, cast

from rlrun.config.compose import compose
from rlrun.config.keys import Keys, run_keys
from rlrun.config.origin import RANK, Origin
from rlrun.config.recipe_text import recipe_text
from rlrun.config.report import Report
from rlrun.config.rules import broken_rules
from rlrun.config.schema import RunConfig
from rlrun.config.settle import Settled, settle
from rlrun.interfaces import Checked


@dataclass(frozen=True, slots=True)
class Loaded:
    """A configuration and its history.

    Attributes:
        config: The run's settings, complete and checked.
        origins: By dotted key, the source that had the last word.
        recipe: Name for the default run directory; "run" without a recipe.
        variants: The chosen variant by slot.
        values: The finished value of every key; names in a free mapping are keys of their own.
    """

    config: RunConfig
    origins: Mapping[str, Origin]
    recipe: str
    variants: Mapping[str, str]
    values: Mapping[str, object]

    def yaml(self) -> str:
        """The run as a complete recipe; run_dir is left out, interpolations stay as written."""
        return recipe_text(self.recipe, self.variants, self.origins, self.values)


def load(overrides: Sequence[str], config_dir: Path | None = None) -> Loaded:
    """Composes and checks a configuration.

    Args:
        overrides: As typed: ``+recipe=NAME``, ``GROUP=CHOICE``, ``KEY=VALUE``.
        config_dir: A folder with further recipes and choices of groups.

    Raises:
        ConfigError: With all mistakes of all sources.
    """
    report = Report(overrides)
    composition = compose(overrides, config_dir, report)
    keys = run_keys(composition.variants)
    settled = settle(composition, keys, report)
    together = _Together(settled, report)
    config = together.build(RunConfig, "", keys)
    if composition.complete:
        together.check_rules()
    report.raise_problems()
    assert config is not None, "a value is missing although nothing is wrong"
    return Loaded(
        config=cast(RunConfig, config),
        origins=settled.origins,
        recipe=composition.recipe,
        variants=composition.variants,
        values=_by_origin(settled),
    )


def load_section(section: str, overrides: Sequence[str], config_dir: Path | None = None) -> Any:
    """The settings object of one section alone, such as "env", of what need not be a whole run.

    All that is given is checked; what the rest of a run would need may be missing.

    Raises:
        ConfigError: With all mistakes of all sources.
    """
    report = Report(overrides)
    composition = compose(overrides, config_dir, report)
    keys = run_keys(composition.variants)
    settled = settle(composition, keys, report, needed=section)
    built = _Together(settled, report).build(keys.sections[section], section, keys)
    report.raise_problems()
    assert built is not None, "a value is missing although nothing is wrong"
    return built


class _Together:
    """Checks what values say together, leaving out keys that have a problem of their own."""

    def __init__(self, settled: Settled, report: Report) -> None:
        self._settled, self._report = settled, report
        self._blamed = report.blamed()

    def build(self, cls: type, prefix: str, keys: Keys) -> object | None:
        """The settings object of a section, or None if a value of it is missing.

        Objects that can be built are asked for their own problems, whatever is wrong elsewhere.
        """
        arguments: dict[str, object] = {}
        for field in fields(cls):
            key = f"{prefix}.{field.name}" if prefix else field.name
            if key in keys.sections:
                section = self.build(keys.sections[key], key, keys)
                if section is not None:
                    arguments[field.name] = section
            elif key in self._settled.values:
                arguments[field.name] = self._settled.values[key]
        if len(arguments) < len(fields(cls)) or inspect.isabstract(cls):
            return None
        built = cls(**arguments)
        if isinstance(built, Checked):
            for names, what, remedy in built.problems():
                involved = [f"{prefix}.{name}" if prefix else name for name in names]
                self._add(involved, f"{prefix}: {what}" if prefix else what, remedy)
        return cast(object, built)

    def check_rules(self) -> None:
        """Reports every broken rule."""
        for rule, what in broken_rules(self._settled.values):
            self._add(rule.keys, what, rule.remedy)

    def _add(self, keys: Sequence[str], what: str, remedy: str) -> None:
        """Reports it where the strongest source gave one of the keys."""
        if any(key in self._blamed for key in keys):
            return
        origins = [
            origin
            for key in keys
            for name, origin in self._settled.origins.items()
            if name == key or name.startswith(f"{key}.")
        ]
        strongest = max(origins, key=lambda origin: RANK[origin.kind])
        self._report.add(strongest.where, what, remedy, *keys)


def _by_origin(settled: Settled) -> dict[str, object]:
    return {key: _value_at(settled.values, key) for key in settled.origins}


def _value_at(values: Mapping[str, object], key: str) -> object:
    if key in values:
        return values[key]
    # The key is a name in a free mapping, which is a value itself.
    names = key.split(".")
    for end in range(len(names) - 1, 0, -1):
        root = ".".join(names[:end])
        if root in values:
            value: Any = values[root]
            for name in names[end:]:
                value = value[name]
            return cast(object, value)
    raise KeyError(key)
