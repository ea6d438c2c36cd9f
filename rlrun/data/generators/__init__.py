# SPDX-License-Identifier: Apache-2.0
"""Generators of rows: each module here is one, named as it is, and ``records(split)`` makes it.

A generator has the splits "train" and "validation", which share no row, and always makes the same
rows. Adding one is adding a module that has a ``records(split)`` function.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import Any

from rlrun.errors import DataError

SPLITS = ("train", "validation")


def generator_names() -> list[str]:
    """All generators, sorted."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__))


def generator_records(name: str, split: str) -> Sequence[Mapping[str, Any]]:
    """The records of a generator's split.

    Raises:
        DataError: No such generator or split.
    """
    where = f"generator:{name}"
    names = generator_names()
    if name not in names:
        near = get_close_matches(name, names, n=1)
        hint = f"Did you mean generator:{near[0]}? " if near else ""
        raise DataError(where, "there is no such generator", f"{hint}There are {', '.join(names)}")
    if split not in SPLITS:
        raise DataError(where, f"split={split} does not exist", f"Use one of {', '.join(SPLITS)}")
    module = importlib.import_module(f"{__name__}.{name}")
    records: Sequence[Mapping[str, Any]] = module.records(split)
    return records
