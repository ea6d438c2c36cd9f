# SPDX-License-Identifier: Apache-2.0
"""What a key of another library is called here: tables of such keys, and what is said of one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlrun.interfaces import REGISTRY


@dataclass(frozen=True, slots=True)
class Renamed:
    """The same setting under another name.

    Attributes:
        key: The key here.
        note: What else is different, a sentence part.
        variant: The "slot/variant" that has the key, where it is not every one.
    """

    key: str
    note: str = ""
    variant: str | None = None


@dataclass(frozen=True, slots=True)
class Chosen:
    """The setting is a choice of a config group here."""

    group: str
    choice: str
    note: str = ""


@dataclass(frozen=True, slots=True)
class Absent:
    """There is no such setting, for a reason."""

    reason: str


Target = Renamed | Chosen | Absent


def find_key(key: str, table: Mapping[str, Target]) -> str | None:
    """What to do about a key, as a remedy, if it is of the table; None otherwise.

    Args:
        key: Dotted, as it was written.
        table: By key; a section stands for every key below it that is not listed itself.
    """
    names = key.split(".")
    for end in range(len(names), 0, -1):
        target = table.get(".".join(names[:end]))
        if target is not None:
            return _remedy(target)
    return None


def available(variant: str | None) -> bool:
    """Whether a variant exists in this version; None stands for what every run has."""
    return variant is None or variant in REGISTRY


def _remedy(target: Target) -> str:
    match target:
        case Renamed(key, note, variant):
            if not available(variant):
                return _unavailable(str(variant))
            choice = f", with {variant.replace('/', '=')}" if variant else ""
            return f"Here it is {key}{choice}" + (f" ({note})" if note else "")
        case Chosen(group, choice, note):
            if not available(f"{group}/{choice}"):
                return _unavailable(f"{group}/{choice}")
            return f"Here it is the choice {group}={choice}" + (f" ({note})" if note else "")
    return target.reason


def _unavailable(variant: str) -> str:
    return f"Nothing to set: this version has no {variant.replace('/', '=')}"
