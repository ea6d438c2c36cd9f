# SPDX-License-Identifier: Apache-2.0
"""Narrow floats of Arrow data as the decimals that were written.

A table of 32-bit floats has 0.1 as what widens to 0.10000000149011612: an answer that nobody gives.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

Reader = Callable[[Any], Any]
"""Takes a value as Arrow gives it to Python; gives the same with decimals as they were written."""


def narrow_columns(schema: Any) -> Mapping[str, Reader]:
    """The columns of an Arrow schema that hold narrow floats, in lists and structures too."""
    readers = {field.name: _reader(field.type) for field in schema}
    return {name: reader for name, reader in readers.items() if reader is not None}


def as_written(record: Mapping[str, Any], columns: Mapping[str, Reader]) -> dict[str, Any]:
    """The record with the narrow floats of these columns as they were written."""
    return {
        name: columns[name](value) if name in columns else value for name, value in record.items()
    }


def _reader(kind: Any) -> Reader | None:
    from pyarrow import types

    if types.is_float16(kind) or types.is_float32(kind):
        form, digits = ("e", 3) if types.is_float16(kind) else ("f", 6)
        return partial(_shortest, form=form, digits=digits)
    if types.is_struct(kind):
        fields = narrow_columns([kind.field(place) for place in range(kind.num_fields)])
        return partial(_of_fields, fields=fields) if fields else None
    if types.is_map(kind):
        names, items = _reader(kind.key_type), _reader(kind.item_type)
        return partial(_of_pairs, names=names, items=items) if names or items else None
    if types.is_dictionary(kind):
        return _reader(kind.value_type)
    if hasattr(kind, "value_type"):  # lists of any length and layout
        items = _reader(kind.value_type)
        return partial(_of_items, items=items) if items else None
    return None


def _of_fields(value: Any, fields: Mapping[str, Reader]) -> Any:
    return as_written(value, fields) if isinstance(value, dict) else value


def _of_items(value: Any, items: Reader) -> Any:
    return [items(item) for item in value] if isinstance(value, list) else value


def _of_pairs(value: Any, names: Reader | None, items: Reader | None) -> Any:
    if not isinstance(value, list):
        return value
    return [
        (names(name) if names else name, items(item) if items else item) for name, item in value
    ]


def _shortest(value: Any, form: str, digits: int) -> Any:
    """The shortest decimal that a narrow float stands for.

    Args:
        value: As Arrow widens it; None and what is no float stay as they are.
        form: Of ``struct``, the narrow type.
        digits: That the narrow type keeps of every decimal.
    """
    if not isinstance(value, float) or not math.isfinite(value):
        return value
    for count in range(digits, digits + 4):
        shorter = float(f"{value:.{count}g}")
        try:
            if struct.unpack(form, struct.pack(form, shorter))[0] == value:
                return shorter
        except OverflowError:
            pass  # Rounded up beyond the largest number of the type.
    return value
