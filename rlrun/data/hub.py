# SPDX-License-Identifier: Apache-2.0
"""Loads a data set of a hub through the ``datasets`` package, with a bounded wait."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, overload

from rlrun.data.narrow_floats import as_written, narrow_columns
from rlrun.data.stores import RecordStore, SequenceStore
from rlrun.errors import NotHere

REACH_TIMEOUT_S = 10.0
"""How long the hub may take to answer the first request."""


def hub_store(name: str, split: str) -> RecordStore:
    """The records of ``NAME`` or ``NAME@CONFIG`` in a split.

    With HF_HUB_OFFLINE=1 in the environment only the local cache is asked.

    Raises:
        NotHere: The package is missing, the hub cannot be reached, or it has no such data set.
    """
    where = f"hf:{name}"
    try:
        import datasets
        import huggingface_hub
    except ImportError as error:
        raise NotHere(
            where,
            f"the package {error.name} is not installed",
            "Run pip install 'rlrun[hf]', or give a .jsonl or .parquet file as source",
        ) from error
    repository, _, config = name.partition("@")
    try:
        if not huggingface_hub.constants.HF_HUB_OFFLINE:
            # Asked first because load_dataset repeats failing requests for a long time.
            huggingface_hub.HfApi().dataset_info(repository, timeout=REACH_TIMEOUT_S)
        rows = datasets.load_dataset(repository, config or None, split=split)
    except Exception as error:  # the transport's exceptions change with versions
        reason = str(error).partition("\n")[0] or type(error).__name__
        raise NotHere(
            where,
            f"split={split} cannot be loaded ({reason})",
            "Download the data set elsewhere and give its .jsonl or .parquet file as source",
        ) from error
    return SequenceStore(f"{where}/{split}", HubRows(rows))


class HubRows(Sequence[Mapping[str, Any]]):
    """The rows of a data set of the hub, with narrow floats as they were written.

    Args:
        rows: A ``datasets.Dataset``.
    """

    def __init__(self, rows: Any) -> None:
        self._rows, self._narrow = rows, narrow_columns(rows.features.arrow_schema)

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        # Reads ahead, unlike one row after another.
        return (as_written(row, self._narrow) for row in self._rows)

    @overload
    def __getitem__(self, index: int) -> Mapping[str, Any]: ...
    @overload
    def __getitem__(self, index: slice) -> list[Mapping[str, Any]]: ...
    def __getitem__(self, index: int | slice) -> Mapping[str, Any] | list[Mapping[str, Any]]:
        if isinstance(index, slice):
            return [self[one] for one in range(*index.indices(len(self)))]
        return as_written(self._rows[index], self._narrow)
