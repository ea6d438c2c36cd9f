# SPDX-License-Identifier: Apache-2.0
"""A JSON Schema of recipe files, so that editors complete and check them."""

from __future__ import annotations

import types
from enum import Enum
from typing import Any, Union, get_args, get_origin

from rlrun.config.duration import Duration
from rlrun.config.keys import Leaf
from rlrun.config.reference import Documented, DocumentedSection, documented_sections
from rlrun.config.values import MISSING

DIALECT = "https://json-schema.org/draft/2020-12/schema"
_WORDS = {
    "ge": "minimum",
    "gt": "exclusiveMinimum",
    "le": "maximum",
    "lt": "exclusiveMaximum",
}
_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string", Duration: "string"}
Schema = dict[str, Any]


def schema_json() -> Schema:
    """The schema of a recipe: all keys with type, range, default and comment.

    No key is required, since a recipe gives only what it changes. The section of a slot matches any
    of its variants; each has its choice as title.
    """
    root: Schema = {
        "$schema": DIALECT,
        "title": "rlrun recipe",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "defaults": {
                "type": "array",
                "description": "Choices of groups, such as - override /loss: gspo, and _self_.",
                "items": {"type": ["string", "object"]},
            }
        },
        "$defs": {
            "interpolation": {
                "type": "string",
                "pattern": r"\$\{",
                "description": "Another key or an environment variable, as ${...}.",
            }
        },
    }
    properties = root["properties"]
    for section in documented_sections():
        if not section.name:
            properties.update({key: _leaf(doc) for key, doc in section.keys.items()})
        elif section.choice is None:
            properties[section.name] = _section(section)
        else:
            slot = properties.setdefault(section.name, {"anyOf": []})
            slot["anyOf"].append(_section(section))
    return root


def _section(section: DocumentedSection) -> Schema:
    schema = _object(section.meaning)
    if section.choice is not None:
        schema["title"] = f"{section.name}={section.choice}"
    for key, comment in section.comments.items():
        _place(schema, key.split(".")[1:], _object(comment))
    for key, doc in section.keys.items():
        _place(schema, key.split(".")[1:], _leaf(doc))
    return schema


def _place(schema: Schema, path: list[str], inner: Schema) -> None:
    for name in path[:-1]:
        schema = schema["properties"][name]
    schema["properties"][path[-1]] = inner


def _object(description: str) -> Schema:
    return {
        "type": "object",
        "description": description,
        "additionalProperties": False,
        "properties": {},
    }


def _leaf(doc: Documented) -> Schema:
    options = _options(doc.leaf.type, doc.leaf)
    if doc.leaf.optional or doc.leaf.is_mapping:
        options.append({"type": "null"})
    if doc.leaf.type is not str and not doc.leaf.is_mapping:
        options.append({"$ref": "#/$defs/interpolation"})
    schema: Schema = {"description": doc.comment}
    schema.update(options[0] if len(options) == 1 else {"anyOf": options})
    if doc.default != MISSING:
        schema["default"] = doc.default
    return schema


def _options(kind: Any, leaf: Leaf) -> list[Schema]:
    if get_origin(kind) in (Union, types.UnionType):
        return [option for member in get_args(kind) for option in _options(member, leaf)]
    if get_origin(kind) is list:
        return [{"type": "array", "items": {"anyOf": _options(get_args(kind)[0], leaf)}}]
    if get_origin(kind) is dict:
        return [{"type": "object"}]
    if kind is Any:
        return [{}]
    if issubclass(kind, Enum):
        return [{"enum": [member.value for member in kind]}]
    bounds = {_WORDS[name]: bound for name, bound in leaf.bounds.items()}
    return [{"type": _TYPES[kind], **(bounds if kind in (int, float) else {})}]
