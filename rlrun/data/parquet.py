# SPDX-License-Identifier: Apache-2.0
"""Reads Parquet files into Arrow tables, rows numbered from 1 as lines are."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rlrun.data.narrow_floats import as_written, narrow_columns
from rlrun.data.stores import Locator, RecordStore, Scanned, canonical
from rlrun.errors import DataError

SCAN_ROWS = 1024
"""Rows that are Python objects at once while a file is read through."""


class ParquetStore(RecordStore):
    """Records of one or several Parquet files; nulls are kept as None."""

    locator_width = 2  # file, row from 1

    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        self.name = name
        self._paths = paths
        self._tables = [_read(path) for path in paths]
        self._narrow = [narrow_columns(table.schema) for table in self._tables]

    def scan(self) -> Iterator[Scanned]:
        """All records in order."""
        for index, table in enumerate(self._tables):
            number = 0
            for batch in table.to_batches(max_chunksize=SCAN_ROWS):
                for record in self._records(batch, index, number):
                    number += 1
                    yield Scanned((index, number), record, canonical(record))

    def _records(self, batch: Any, index: int, before: int) -> list[dict[str, Any]]:
        """The rows of a batch that has so many before it."""
        try:
            return [as_written(record, self._narrow[index]) for record in batch.to_pylist()]
        # Arrow's own errors are ValueErrors; those of dates and time zones are Python's.
        except (ValueError, OverflowError, LookupError) as error:
            first, last = before + 1, before + batch.num_rows
            raise DataError(
                f"{self._paths[index]}:{first}",
                f"a value of the rows {first} to {last} has no form in Python: {error}",
                "Write times and dates as texts, or leave the column out",
            ) from error

    def fetch(self, locator: Locator) -> Mapping[str, Any]:
        """The record of a row."""
        index, number = locator
        (record,) = self._tables[index].slice(number - 1, 1).to_pylist()
        return as_written(record, self._narrow[index])

    def label(self, locator: Locator) -> tuple[str, str]:
        """The file's name, and its path, with the row number."""
        path = self._paths[locator[0]]
        return f"{path.name}:{locator[1]}", f"{path}:{locator[1]}"


def _read(path: Path) -> Any:
    import pyarrow
    import pyarrow.parquet

    try:
        table = pyarrow.parquet.ParquetFile(path).read()
        table.validate(full=True)
    except (OSError, pyarrow.ArrowException) as error:
        raise DataError(
            str(path), f"cannot be read as Parquet ({error})", "Write the file again"
        ) from error
    names = table.column_names
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise DataError(str(path), f"columns {twice} occur more than once", "Rename the columns")
    return table
