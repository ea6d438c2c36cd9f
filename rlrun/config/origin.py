# SPDX-License-Identifier: Apache-2.0
"""What a configuration is made of: values with the place that they come from."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class OriginKind(StrEnum):
    """The layers of a configuration, weakest first."""

    DEFAULT = "default"
    """conf/run.yaml and the choices that it makes."""
    GROUP = "group"
    """A file of a config group that was chosen instead of the default one."""
    RECIPE = "recipe"
    SCALE = "scale"
    FLAG = "flag"


RANK = {kind: rank for rank, kind in enumerate(OriginKind)}


@dataclass(frozen=True, slots=True)
class Origin:
    """The source that had the last word about a key.

    Attributes:
        value: As written: an interpolation such as ``${oc.env:NAME}`` is not resolved.
        kind: The layer.
        where: ``FILE:LINE``, or the flag as typed.
    """

    value: object
    kind: OriginKind
    where: str


@dataclass(frozen=True, slots=True)
class Assignment:
    """One value that a source gives to a key, or null or {} that it gives to a section."""

    path: tuple[str, ...]
    value: object
    kind: OriginKind
    where: str

    @property
    def key(self) -> str:
        """The dotted key."""
        return ".".join(self.path)

    @property
    def origin(self) -> Origin:
        """The assignment as the origin of its key."""
        return Origin(self.value, self.kind, self.where)


def leaves_of(value: object, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], object]]:
    """The (path, value) of everything below nested mappings; an empty mapping is a value."""
    if not isinstance(value, dict) or not value:
        return [(path, value)]
    return [leaf for key, inner in value.items() for leaf in leaves_of(inner, (*path, str(key)))]
