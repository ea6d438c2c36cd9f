# SPDX-License-Identifier: Apache-2.0
"""Turns values as written into values of a key's type, or says why that is not possible."""

from __future__ import annotations

import json
import math
import operator
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, Union, get_args, get_origin

import yaml

from rlrun.config.duration import Duration, how_to_write, parse_duration
from rlrun.config.keys import Leaf
from rlrun.config.suggest import nearest
from rlrun.config.yaml_loader import Loader

MISSING = "???"
"""A value that somebody must give."""

IN_QUOTES = 'Put it in quotes to make it text: "..."'
"""What to do with a number where a text belongs."""

_NULL_WORDS = ("none", "nil", "null", "undefined")
_BOUNDS = {
    "ge": (operator.ge, "at least"),
    "gt": (operator.gt, "above"),
    "le": (operator.le, "at most"),
    "lt": (operator.lt, "below"),
}


class WrongValue(Exception):
    """Why a value cannot be had.

    Args:
        what: Follows the key, such as "must be a whole number, not 4.5".
        remedy: A sentence of its own.
    """

    def __init__(self, what: str, remedy: str) -> None:
        super().__init__(what)
        self.what, self.remedy = what, remedy


def is_interpolated(value: object) -> bool:
    """Whether a value, or an item of it, contains a ``${...}``."""
    if isinstance(value, list):
        return any(is_interpolated(item) for item in value)
    if isinstance(value, dict):
        return any(is_interpolated(item) for item in value.values())
    return isinstance(value, str) and "${" in value


def shown(value: object) -> str:
    """A value as it is written in YAML."""
    if isinstance(value, Enum):
        return shown(value.value)
    if isinstance(value, float):
        return repr(value)
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return repr(value)


def convert(value: object, leaf: Leaf, *, from_text: bool = False) -> object:
    """The value in the key's type and range.

    Args:
        value: As YAML or a flag gives it.
        leaf: The key.
        from_text: Whether a text may stand for a number, as in environment variables.

    Raises:
        WrongValue: It is of another type or out of range.
    """
    if from_text and isinstance(value, str) and leaf.type is not str:
        value = _read_text(value)
    if value is None:
        if leaf.optional:
            return None
        raise WrongValue("cannot be null", f"Write {describe(leaf.type)}")
    if isinstance(value, str) and value.lower() in _NULL_WORDS and not _is_legal_word(value, leaf):
        if leaf.optional:
            raise WrongValue(f"is the text {shown(value)}", "Write null to leave it unset")
        raise WrongValue(
            f"is the text {shown(value)}, and it cannot be null", f"Write {describe(leaf.type)}"
        )
    converted = _convert(value, leaf.type, describe(leaf.type), leaf.optional)
    _check_range(converted, leaf.bounds)
    _check_texts(converted)
    return converted


def item_type(leaf: Leaf) -> Any:
    """What the values of a free mapping are."""
    return get_args(leaf.type)[1]


def describe(kind: Any) -> str:
    """A type in words, after "must be" and "Write"."""
    origin = get_origin(kind)
    if origin is list:
        return f"a list, each item {describe(get_args(kind)[0])}"
    if origin is dict:
        return "a mapping of names to values"
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member) for member in get_args(kind))
    if isinstance(kind, type) and issubclass(kind, Enum):
        return "one of " + ", ".join(str(member.value) for member in kind)
    words = {bool: "true or false", int: "a whole number", float: "a number", str: "text"}
    words[Duration] = "a duration as DD:HH:MM:SS"
    return "any value" if kind is Any else words[kind]


def range_text(bounds: Mapping[str, float]) -> str:
    """A range in words, such as "at least 0 and below 1"; "" for none."""
    given = [(words, bounds[name]) for name, (_, words) in _BOUNDS.items() if name in bounds]
    return " and ".join(f"{words} {bound}" for words, bound in given)


def _is_legal_word(value: str, leaf: Leaf) -> bool:
    """Whether a word for null is a value of its own here."""
    if isinstance(leaf.type, type) and issubclass(leaf.type, Enum):
        return value in [member.value for member in leaf.type]
    return leaf.type is Any


def _read_text(text: str) -> object:
    try:
        return yaml.load(text, Loader)
    except yaml.YAMLError:
        return text


def _convert(value: object, kind: Any, wanted: str, optional: bool = False) -> Any:
    origin = get_origin(kind)
    remedy = _remedy(value, kind, wanted, optional)
    wrong = WrongValue(f"must be {wanted}, not {_named(value)}", remedy)
    if kind is Any:
        return value
    if origin is list:
        if not isinstance(value, list):
            raise wrong
        return [_convert(item, get_args(kind)[0], wanted) for item in value]
    if origin in (Union, types.UnionType):
        for member in get_args(kind):
            try:
                return _convert(value, member, wanted)
            except WrongValue:
                continue
        raise wrong
    if issubclass(kind, Enum):
        members = {str(member.value): member for member in kind}
        if not isinstance(value, str) or value not in members:
            raise wrong
        return members[value]
    if kind is bool:
        return _convert_bool(value, wrong)
    if kind is Duration:
        return _convert_duration(value, wrong)
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return _as_float(value)
    if kind is not str and isinstance(value, float) and not math.isfinite(value):
        raise WrongValue(f"must be a finite number, not {value}", "Write an ordinary number")
    if isinstance(value, bool) or not isinstance(value, kind):
        raise wrong
    return value


def _as_float(value: int) -> float:
    try:
        return float(value)
    except OverflowError:
        what = f"must be a finite number, which one of {len(str(abs(value)))} digits is not"
        raise WrongValue(what, "Write an ordinary number") from None


def _convert_bool(value: object, wrong: WrongValue) -> bool:
    words = {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}
    if isinstance(value, bool):
        return value
    # YAML reads yes and on as true; flags should not differ from it.
    if isinstance(value, str) and value.lower() in words:
        return words[value.lower()]
    raise wrong


def _convert_duration(value: object, wrong: WrongValue) -> str:
    """The text; a number is told in which forms it may have been meant."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise wrong
    try:
        parse_duration(str(value))
    except ValueError as error:
        what = f"is {_named(value)}, which {error}"
        raise WrongValue(what, how_to_write(str(value))) from error
    return str(value)


def _named(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool() | int() | float():
            return shown(value)
        case str():
            return f"the text {shown(value)}"
        case list():
            return f"the list {shown(value)}"
        case dict():
            return "a mapping"
    return f"{shown(value)} ({type(value).__name__})"


def _remedy(value: object, kind: Any, wanted: str, optional: bool) -> str:
    if isinstance(kind, type) and issubclass(kind, Enum) and isinstance(value, str):
        return f"Write {nearest(value, [str(member.value) for member in kind])[0]}"
    if kind is str and isinstance(value, bool | int | float):
        return IN_QUOTES
    if get_origin(kind) is list and not isinstance(value, list | dict):
        return f"Write it in brackets: [{shown(value)}]"
    return f"Write {wanted}" + (" or null" if optional else "")


def _check_texts(value: object) -> None:
    """Texts end up in file names, logs and config.yaml, which cannot hold every character."""
    if isinstance(value, list):
        for item in value:
            _check_texts(item)
    if isinstance(value, dict):
        for name, item in value.items():
            _check_texts(name)
            _check_texts(item)
    if type(value) is not str:
        return
    found = next((c for c in value if c == "\0" or "\ud800" <= c <= "\udfff"), None)
    if found is not None:
        what = f"holds the character U+{ord(found):04X}, which is no text"
        raise WrongValue(what, "Leave it out, and write the text in UTF-8")


def _check_range(value: object, bounds: Mapping[str, float]) -> None:
    if isinstance(value, list):
        for item in value:
            _check_range(item, bounds)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    if not all(_BOUNDS[name][0](value, bound) for name, bound in bounds.items()):
        text = range_text(bounds)
        raise WrongValue(f"must be {text}, not {shown(value)}", f"Write a number that is {text}")
