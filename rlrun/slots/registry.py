# SPDX-License-Identifier: Apache-2.0
"""How a settings class becomes a variant of a slot, and what its fields may be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import field
from typing import Any, TypeVar

SLOTS = ("grpo", "env", "generation", "loss", "advantage", "correction", "batching", "cluster")
"""Packages of variants, scanned when a configuration is read."""

REGISTRY: dict[str, type] = {}
"""Settings classes by "slot/name"."""

T = TypeVar("T", bound=type)


def component(name: str) -> Callable[[T], T]:
    """Registers a settings class as the variant ``name`` = "slot/variant"."""

    def register(cls: T) -> T:
        REGISTRY[name] = cls
        return cls

    return register


def variant_of(settings: object) -> str:
    """The name of a variant by its settings: "math" for those of "env/math"."""
    names = (name for name, cls in REGISTRY.items() if cls is type(settings))
    return next(names, "").rpartition("/")[2]


def setting(
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
) -> Any:
    """Declares the legal range of a numeric setting, checked when the configuration is read.

    Each bound is optional; null is always legal where the type allows it.
    """
    bounds = {"ge": ge, "gt": gt, "le": le, "lt": lt}
    return field(metadata={name: bound for name, bound in bounds.items() if bound is not None})


class Checked:
    """A settings class may check what its own fields say together."""

    __slots__ = ()

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Yields (field names, what is wrong with their values, remedy)."""
        yield from ()
