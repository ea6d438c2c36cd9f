# SPDX-License-Identifier: Apache-2.0
"""All keys of a run with their types and ranges, read off the settings classes."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Any, Union, get_args, get_origin, get_type_hints

from rlrun.config.schema import RunConfig
from rlrun.interfaces import REGISTRY, SLOTS


@dataclass(frozen=True, slots=True)
class Leaf:
    """A key that holds a value.

    Attributes:
        key: Dotted, from the root.
        type: Its type without None.
        optional: Whether null is legal.
        bounds: Range by ge, gt, le, lt.
    """

    key: str
    type: Any
    optional: bool
    bounds: Mapping[str, float]

    @property
    def is_mapping(self) -> bool:
        """Whether the names below the key are free."""
        return get_origin(self.type) is dict


@dataclass(frozen=True, slots=True)
class Keys:
    """What exists: settings classes by dotted section, leaves by dotted key."""

    sections: Mapping[str, type]
    leaves: Mapping[str, Leaf]

    def holder(self, path: tuple[str, ...]) -> Leaf | None:
        """The leaf at a path, or the free mapping or single value that the path leads into."""
        for end in range(len(path), 0, -1):
            leaf = self.leaves.get(".".join(path[:end]))
            if leaf is not None:
                return leaf
        return None

    def __contains__(self, key: str) -> bool:
        return key in self.leaves or key in self.sections

    def names(self) -> list[str]:
        """All keys, sections included."""
        return [*self.sections, *self.leaves]


@cache
def keys_of(cls: type, prefix: str = "") -> Keys:
    """The keys of a settings class.

    Raises:
        TypeError: A field has a type that no YAML value can have; a mistake in the class.
    """
    sections, leaves = dict[str, type](), dict[str, Leaf]()
    hints = get_type_hints(cls)
    for field in fields(cls):
        key = f"{prefix}.{field.name}" if prefix else field.name
        kind, optional = _without_none(hints[field.name])
        if isinstance(kind, type) and is_dataclass(kind):
            if optional:
                raise TypeError(f"{cls.__name__}.{field.name}: a section cannot be null")
            inner = keys_of(kind, key)
            sections |= {key: kind, **inner.sections}
            leaves |= inner.leaves
        else:
            leaves[key] = Leaf(key, kind, optional, dict(field.metadata))
    return Keys(sections, leaves)


def run_keys(variants: Mapping[str, str]) -> Keys:
    """The keys of a run with the chosen variant of each slot."""
    keys = keys_of(RunConfig)
    sections, leaves = dict(keys.sections), dict(keys.leaves)
    for slot in SLOTS:
        cls = REGISTRY.get(f"{slot}/{variants.get(slot)}")
        if cls is not None:
            inner = keys_of(cls, slot)
            sections |= {slot: cls, **inner.sections}
            leaves |= inner.leaves
    return Keys(sections, leaves)


def variants_with(key: str) -> list[str]:
    """The names of the variants of the key's slot that have the key, or a free mapping it is in."""
    path = tuple(key.split("."))
    found = []
    for name, cls in sorted(REGISTRY.items()):
        slot, _, variant = name.partition("/")
        if slot == path[0]:
            keys = keys_of(cls, slot)
            holder = keys.holder(path)
            if key in keys or (holder is not None and holder.is_mapping):
                found.append(variant)
    return found


def all_keys() -> set[str]:
    """Every key of every variant."""
    found = set(keys_of(RunConfig).names())
    for name, cls in REGISTRY.items():
        found.update(keys_of(cls, name.partition("/")[0]).names())
    return found


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) not in (Union, types.UnionType):
        return hint, False
    members = [member for member in get_args(hint) if member is not type(None)]
    optional = len(members) < len(get_args(hint))
    return (members[0] if len(members) == 1 else Union[tuple(members)]), optional  # noqa: UP007 (members are known at run time only)
