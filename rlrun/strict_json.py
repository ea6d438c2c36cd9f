# SPDX-License-Identifier: Apache-2.0
"""JSON that comes from outside: what Python's own reader takes in silence is an error here.

Of a name that an object has twice that reader keeps the last value. The one meant may be the other.
"""

from __future__ import annotations

import json
import math
from typing import Any, NoReturn

SHOWN = 80
"""Characters of a name that an error repeats."""


class NameTwice(ValueError):
    """An object has a name more than once."""

    def __init__(self, name: str) -> None:
        self.name = name
        super().__init__(f"field {name!r:.{SHOWN}} occurs more than once")


def read_json(text: str | bytes, *, only_finite: bool) -> Any:
    """The value of a JSON text.

    Args:
        text: UTF-8 if it is bytes.
        only_finite: Refuse NaN and Infinity, which JSON lacks and Python writes, and numbers that
            a float cannot hold; otherwise it is for whoever uses a number to look at it.

    Raises:
        NameTwice: An object has a name more than once.
        ValueError: It is no JSON.
        RecursionError: It is nested too deeply.
    """
    if only_finite:
        return json.loads(
            text, object_pairs_hook=unique_names, parse_constant=no_constant, parse_float=_finite
        )
    return json.loads(text, object_pairs_hook=unique_names)


def unique_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The object of these pairs, as ``object_pairs_hook`` of a decoder; raises NameTwice."""
    record = dict(pairs)
    if len(record) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise NameTwice(name)
            seen.add(name)
    return record


def no_constant(name: str) -> NoReturn:
    """Refuses NaN and Infinity, as ``parse_constant`` of a decoder; raises ValueError."""
    raise ValueError(f"{name} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text:.40} is out of range")
    return number
