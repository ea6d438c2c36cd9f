# SPDX-License-Identifier: Apache-2.0
"""Reads the lines of a run directory that may be damaged: strict JSON objects of checked values."""

from __future__ import annotations

import json
import math
import sys
from decimal import Decimal
from numbers import Real
from types import NoneType
from typing import Any

from rlrun.errors import RESTORE, StorageError
from rlrun.strict_json import NameTwice, no_constant, unique_names

_LARGEST = sys.float_info.max
# Written integers stay below; sums of them still are floats.
_LARGEST_INTEGER = 10**300
_NUMBERS = {int, float, NoneType}


def parse_object(where: str, line: bytes) -> dict[str, Any]:
    """The object on a line.

    Raises:
        StorageError: The line is not UTF-8, not strict JSON, no object, or has a name twice; says
            ``where``.
    """
    try:
        values = _decoder.decode(line.decode())
    except NameTwice as error:
        raise StorageError(where, f"is not as it was written: {error}", RESTORE) from error
    except (ValueError, RecursionError) as error:
        raise StorageError(where, f"is no JSON: {error}", RESTORE) from error
    if not isinstance(values, dict):
        raise StorageError(where, "is no JSON object", RESTORE)
    return values


def is_text(value: object) -> bool:
    """Whether it is a text."""
    return type(value) is str


def is_integer(value: object) -> bool:
    """Whether it is an integer, not a boolean, that fits into a float."""
    return type(value) is int and abs(value) < _LARGEST_INTEGER


def is_number(value: object) -> bool:
    """Whether it is a finite number or null; a boolean is a number."""
    if type(value) is float:
        return abs(value) <= _LARGEST
    return value is None or type(value) is bool or is_integer(value)


def finite(value: object) -> float | None:
    """A number of any library as a float; None for what is none, or too large to be one.

    Arrays and tensors of one element are numbers, as are booleans of NumPy and decimals.
    """
    # The plain types first: asking an abstract one takes ten times as long.
    if not isinstance(value, (float, int, Real)):
        value = _item(value)
    if not isinstance(value, (float, int, Real, Decimal)):
        return None
    try:
        number = float(value)
    except (OverflowError, ValueError):  # a signalling decimal
        return None
    return number if math.isfinite(number) else None


def _item(value: object) -> object:
    """What an array or tensor of one element holds; anything else as it is."""
    item = getattr(value, "item", None)
    try:
        return item() if callable(item) else value
    except (TypeError, ValueError, RuntimeError):
        # NumPy and torch refuse in their own ways if there is not exactly one element.
        return None


def are_numbers(values: object) -> bool:
    """Whether it is a list of finite numbers and nulls."""
    return type(values) is list and _in_range(values, set(map(type, values)), _NUMBERS)


def are_integers(values: object) -> bool:
    """Whether it is a list of integers."""
    return type(values) is list and _in_range(values, set(map(type, values)), {int})


def is_shallow(value: object, levels: int = 64) -> bool:
    """Whether lists and objects are nested in at most so many levels, so that it can be shown."""
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return True
    return levels > 0 and all(is_shallow(item, levels - 1) for item in value)


def _in_range(values: list[Any], kinds: set[type], allowed: set[type]) -> bool:
    # No loop of Python runs over a list without null: there are five in each trained trajectory.
    if not kinds <= allowed:
        return False
    given = [value for value in values if value is not None] if NoneType in kinds else values
    return not given or (-_LARGEST <= min(given) and max(given) <= _LARGEST)


_decoder = json.JSONDecoder(object_pairs_hook=unique_names, parse_constant=no_constant)
