# SPDX-License-Identifier: Apache-2.0
"""Fills a dataclass from a mapping of a YAML file: every name known, every value of its type."""

from __future__ import annotations

import math
import types
from collections.abc import Iterable
from dataclasses import MISSING, fields
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from rlrun.config.suggest import nearest
from rlrun.errors import ConfigError, Problem
from rlrun.nightly.yaml_tree import Node

T = TypeVar("T")


def read_fields(cls: type[T], node: Node, problems: list[Problem], **given: object) -> T | None:
    """An instance of ``cls``, or None with what is wrong added to ``problems``.

    Args:
        cls: A dataclass of text, numbers, enumerations and lists of these.
        node: A mapping.
        problems: Is added to.
        given: Fields that do not come from the mapping, which then must not name them.
    """
    try:
        mapping = node.mapping()
    except ConfigError as error:
        problems += error.problems
        return None
    before = len(problems)
    hints = get_type_hints(cls)
    own: Any = cls  # a dataclass, which typing cannot say of an abstract one
    known = {field.name: field for field in fields(own) if field.name not in given}
    problems += unknown_names(mapping, known)
    values = dict(given)
    for name, field in known.items():
        if name in mapping:
            values[name] = _convert(hints[name], mapping[name], name, problems)
        elif field.default is MISSING and field.default_factory is MISSING:
            problems.append(Problem(node.where, f"{name} is missing", f"Add {name}: ..."))
    return cls(**values) if len(problems) == before else None


def unknown_names(mapping: dict[str, Node], known: dict[str, Any]) -> list[Problem]:
    """A problem for each name that is not known, with the one that was probably meant."""
    return [
        Problem(
            node.where,
            f"{name} is not known here",
            meant(name, known, "Known"),
        )
        for name, node in mapping.items()
        if name not in known
    ]


def meant(word: str, known: Iterable[str], what: str) -> str:
    """A remedy for a name that does not exist: the most similar one, and all that there are."""
    names = list(known)
    if not names:
        return "Leave it out"
    return f"Did you mean {nearest(word, names)[0]}? {what}: {', '.join(names)}"


def _convert(hint: Any, node: Node, name: str, problems: list[Problem]) -> Any:
    """The value as ``hint`` says; anything after a problem was added."""
    if get_origin(hint) is types.UnionType:
        if node.value is None and type(None) in get_args(hint):
            return None
        hint = next(one for one in get_args(hint) if one is not type(None))
    value = node.value
    if get_origin(hint) is tuple:
        if isinstance(value, list):
            return tuple(_convert(get_args(hint)[0], item, name, problems) for item in value)
        problems.append(Problem(node.where, f"{name} is not a list", f"Write {name}: [a, b]"))
        return ()
    if isinstance(hint, type) and issubclass(hint, Enum):
        choices = [str(member.value) for member in hint]
        if value in choices:
            return hint(value)
        what = f"{name}={value} is none of the choices"
        problems.append(Problem(node.where, what, meant(str(value), choices, "Choices")))
        return None
    if hint is float and type(value) is int:
        value = float(value)
    if type(value) is not hint or (isinstance(value, float) and not math.isfinite(value)):
        shown = "a mapping" if isinstance(value, dict) else repr(value)
        kind = {str: "text", int: "a whole number", float: "a finite number", bool: "true or false"}
        problems.append(
            Problem(node.where, f"{name} is {shown}, not {kind[hint]}", "Correct the value")
        )
    return value
