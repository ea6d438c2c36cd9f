# SPDX-License-Identifier: Apache-2.0
"""Loads a data source: every row is read and checked once, before any model exists."""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import overload

from rlrun.config.data_schema import DataSource, OnBadRow, SourceKind
from rlrun.console.counted import counted
from rlrun.data.bad_row import BadRow
from rlrun.data.extents import Extents
from rlrun.data.row_reader import RowReader
from rlrun.data.sources import open_store
from rlrun.data.stores import RecordStore, Scanned
from rlrun.errors import DataError
from rlrun.interfaces import Env
from rlrun.types import Row

SHOWN_PROBLEMS = 20
"""Bad rows that an error lists one by one."""

SHOWN_EXAMPLES = 5
"""Bad rows of each reason that are kept as examples."""

UNREADABLE_FOR_ENV = "refused by the environment"

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class Skipped:
    """Rows left out for one reason.

    Attributes:
        count: How many.
        examples: "FILE:LINE reason: detail" of the first few.
    """

    count: int = 0
    examples: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """The usable rows of a data source.

    Attributes:
        rows: In the order of the source.
        extents: Roles and size of each row's conversation, in the order of ``rows``.
        skipped: Rows left out, by reason (empty unless on_bad_row=skip).
        checksum: Hex digest over the settings that shape rows and the content of every kept row;
            file contents count, folders do not, so a data set may move between runs.
        notices: What the user should know, a sentence each.
        name: What messages call the source.
    """

    rows: Sequence[Row]
    extents: Extents
    skipped: Mapping[str, Skipped]
    checksum: str
    notices: tuple[str, ...]
    name: str


class StoredRows(Sequence[Row]):
    """Rows that are read from their store at each access."""

    def __init__(self, store: RecordStore, reader: RowReader) -> None:
        self._store, self._reader = store, reader
        self._locators = array("Q")

    def keep(self, locator: tuple[int, ...]) -> None:
        """Appends a row."""
        self._locators.extend(locator)

    def __len__(self) -> int:
        return len(self._locators) // self._store.locator_width

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> list[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | list[Row]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        width = self._store.locator_width
        locator = tuple(self._locators[place * width : (place + 1) * width])
        return self._reader.read(self._store.fetch(locator), *self._store.label(locator))


def load_rows(source: DataSource, env: Env, *, on_bad_row: OnBadRow, base_dir: Path) -> LoadedRows:
    """Reads and checks all rows of a source, up to its limit of usable ones.

    Args:
        source: The settings.
        env: Checks each row's reference answer.
        on_bad_row: Whether a bad row is an error or a counted skip.
        base_dir: What relative paths are relative to.

    Raises:
        DataError: The source cannot be used, has a bad row, or has no usable row.
    """
    store = open_store(source, base_dir)
    verifier_only = source.scheme()[0] == SourceKind.REASONING_GYM
    reader = RowReader(source, needs_answer=not verifier_only)
    rows = StoredRows(store, reader)
    digest = hashlib.sha256(_row_settings(source))
    bad, extents = _BadRows(on_bad_row), Extents()
    for scanned in store.scan():
        row_id, where = store.label(scanned.locator)
        try:
            row = _checked_row(scanned, reader, env, row_id, where)
        except BadRow as error:
            bad.add(where, error)
            continue
        rows.keep(scanned.locator)
        extents.add(row.messages)
        digest.update(b"%b\n%d\n%b" % (row_id.encode(), len(scanned.content), scanned.content))
        if source.limit is not None and len(rows) == source.limit:
            break
    bad.finish(store.name, len(rows))
    notices = tuple(store.notices) + tuple(_notices(source, len(rows), bad))
    _log.info("%s: %d rows loaded", store.name, len(rows))
    return LoadedRows(rows, extents, bad.by_reason, digest.hexdigest(), notices, store.name)


def _checked_row(scanned: Scanned, reader: RowReader, env: Env, row_id: str, where: str) -> Row:
    if isinstance(scanned.record, BadRow):
        raise scanned.record
    row = reader.read(scanned.record, row_id, where)
    problem = env.check_row(row)
    if problem is not None:
        raise BadRow(UNREADABLE_FOR_ENV, problem)
    return row


def _row_settings(source: DataSource) -> bytes:
    settings = {
        "prompt_field": source.prompt_field,
        "answer_field": source.answer_field,
        "answer_pattern": source.answer_pattern,
        "system_prompt": source.system_prompt,
        "prompt_template": source.prompt_template,
    }
    return json.dumps(settings, sort_keys=True).encode()


def _notices(source: DataSource, count: int, bad: _BadRows) -> Iterator[str]:
    for reason, skipped in bad.by_reason.items():
        example = skipped.examples[0]
        yield f"{source.source}: {counted(skipped.count, 'row')} skipped ({reason}), e.g. {example}"
    if source.limit is not None and count < source.limit:
        yield f"{source.source}: limit={source.limit}, but only {counted(count, 'usable row')}"


class _BadRows:
    """Counts bad rows and says what becomes of them."""

    def __init__(self, on_bad_row: OnBadRow) -> None:
        self.by_reason: dict[str, Skipped] = {}
        self._first: list[str] = []
        self._on_bad_row = on_bad_row

    def add(self, where: str, error: BadRow) -> None:
        line = f"{where} {error}"
        entry = self.by_reason.setdefault(error.reason, Skipped())
        entry.count += 1
        if len(entry.examples) < SHOWN_EXAMPLES:
            entry.examples.append(line)
        if len(self._first) < SHOWN_PROBLEMS:
            self._first.append(line)

    def finish(self, name: str, kept: int) -> None:
        """Ends the reading.

        Raises:
            DataError: A bad row is an error, or nothing is left.
        """
        total = sum(entry.count for entry in self.by_reason.values())
        if total == 0 and kept == 0:
            raise DataError(name, "there are no rows", "Give a source that has some")
        if total == 0 or (self._on_bad_row is OnBadRow.SKIP and kept):
            return
        counts = ", ".join(f"{e.count} {reason}" for reason, e in self.by_reason.items())
        listed = "".join(f"\n  {line}" for line in self._first)
        if total > len(self._first):
            listed += f"\n  ... and {total - len(self._first)} more"
        what = f"{total} of {counted(total + kept, 'row')} cannot be used ({counts})"
        if kept:
            remedy = "Correct them, or count and skip them by data.on_bad_row=skip"
        else:
            what, remedy = f"no row is left; {what}", "Correct the rows or the field settings"
        raise DataError(name, what, f"{remedy}:{listed}")
