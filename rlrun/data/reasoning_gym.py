# SPDX-License-Identifier: Apache-2.0
"""Rows of a reasoning-gym data set; its own verifier scores them (env=reasoning_gym).

Every row's payload holds what that verifier needs: the data set's ``name`` and ``config`` and the
``entry`` as it was generated. Entries are not generated again elsewhere, since some data sets
depend on Python's hash seed.
"""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from typing import Any

from rlrun.console.counted import counted
from rlrun.data.stores import RecordStore, SequenceStore
from rlrun.errors import DataError

PAYLOAD_FIELD = "reasoning_gym"
"""Payload field of a row: {"name", "config", "entry"}."""

PROBED_ROWS = 16
"""Rows on which the data set's verifier is tried."""

NONSENSE = "zzz"

# What third-party generators raise on options that they do not check themselves.
FAULTS = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

_log = logging.getLogger(__name__)


def import_package(where: str) -> Any:
    """The reasoning_gym package.

    Raises:
        DataError: It is not installed.
    """
    try:
        return importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise DataError(
            where,
            f"the package reasoning-gym cannot be imported ({error})",
            "Run pip install 'rlrun[reasoning-gym]'",
        ) from error


def reasoning_gym_store(name: str, size: int, seed: int, options: Mapping[str, Any]) -> RecordStore:
    """Generates ``size`` entries of a data set.

    Raises:
        DataError: The package is missing, the data set or an option does not exist, or the
            generator refuses the options.
    """
    where = f"reasoning_gym:{name}"
    package = import_package(where)
    _check_names(package, name, options, where)
    config = {"size": size, "seed": seed, **options}
    _log.info("%s: generating %d rows", where, size)
    try:
        dataset = package.create_dataset(name, **config)
        entries = [dataset[index] for index in range(size)]
    except FAULTS as error:
        raise DataError(
            where,
            f"refused size={size}, seed={seed}, options={dict(options)} ({error})",
            "Correct the options",
        ) from error
    records = [_record(name, config, entry) for entry in entries]
    return SequenceStore(where, records, tuple(_probe(dataset, entries[:PROBED_ROWS], where)))


def _check_names(package: Any, name: str, options: Mapping[str, Any], where: str) -> None:
    known = package.factory.DATASETS
    if name not in known:
        names = ", ".join(get_close_matches(name, known, n=3)) or "none"
        raise DataError(where, "there is no such data set", f"Near names: {names}")
    _, config_class = known[name]
    legal = sorted({f.name for f in dataclasses.fields(config_class)} - {"size", "seed"})
    for option in options:
        if option not in legal:
            near = get_close_matches(option, legal, n=1)
            hint = f"Did you mean {near[0]}? " if near else ""
            raise DataError(
                where,
                f"options has no {option!r}",
                f"{hint}The options are {', '.join(legal)}; size and seed are keys of their own",
            )


def _record(name: str, config: Mapping[str, Any], entry: Mapping[str, Any]) -> dict[str, Any]:
    answer = entry["answer"]
    return {
        "problem": entry["question"],
        "answer": None if answer is None else str(answer),
        PAYLOAD_FIELD: {"name": name, "config": config, "entry": entry},
    }


def _probe(dataset: Any, entries: list[dict[str, Any]], where: str) -> Iterator[str]:
    """What is wrong with the data set's verifier, as far as a few rows show."""
    rewarded = refused = 0
    for entry in entries:
        rewarded += _is_right(dataset, NONSENSE, entry)
        refused += entry["answer"] is not None and not _is_right(dataset, entry["answer"], entry)
    if rewarded:
        yield (
            f"{where}: its verifier calls the answer {NONSENSE!r} right in {rewarded} of "
            f"{counted(len(entries), 'row')}, so a policy can earn rewards without solving anything"
        )
    if refused:
        yield (
            f"{where}: its verifier calls its own answer wrong in {refused} of "
            f"{counted(len(entries), 'row')}"
        )


def _is_right(dataset: Any, answer: str, entry: Mapping[str, Any]) -> bool:
    try:
        return bool(dataset.score_answer(answer, entry) == 1.0)
    except FAULTS:
        # A verifier that gives up on an answer does not call it right.
        return False
