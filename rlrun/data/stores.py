# SPDX-License-Identifier: Apache-2.0
"""Record stores: raw records that can be read through once and fetched one by one later."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rlrun.data.bad_row import BadRow

Locator = tuple[int, ...]
"""Where a record is within its store; the store says how many numbers that takes."""


@dataclass(slots=True)
class Scanned:
    """A record as the first reading finds it.

    Attributes:
        locator: Fetches the record again.
        record: Its fields, or why they cannot be read.
        content: Bytes that change when the record does.
    """

    locator: Locator
    record: Mapping[str, Any] | BadRow
    content: bytes


class RecordStore(ABC):
    """Raw records of one data source."""

    name: str
    """What error messages call the source."""

    locator_width: int
    """Length of this store's locators."""

    notices: Sequence[str] = ()
    """What the user should know about this source."""

    @abstractmethod
    def scan(self) -> Iterator[Scanned]:
        """All records in order.

        Raises:
            DataError: A file cannot be read at all.
        """

    @abstractmethod
    def fetch(self, locator: Locator) -> Mapping[str, Any]:
        """The record at a locator that ``scan`` gave.

        Raises:
            DataError: The file is gone or has other content now.
        """

    @abstractmethod
    def label(self, locator: Locator) -> tuple[str, str]:
        """(row id, where) of a record: "<file name>:<line>" and "<path>:<line>"."""


class SequenceStore(RecordStore):
    """Records that a Python sequence holds, such as those of a generator.

    Args:
        name: Of the source, e.g. "generator:addition"; row ids are "<name>:<index from 0>".
        records: The records.
        notices: What the user should know about them.
    """

    locator_width = 1

    def __init__(
        self, name: str, records: Sequence[Mapping[str, Any]], notices: Sequence[str] = ()
    ) -> None:
        self.name = name
        self.notices = notices
        self._records = records

    def scan(self) -> Iterator[Scanned]:
        """All records in order."""
        for index, record in enumerate(self._records):
            yield Scanned((index,), record, canonical(record))

    def fetch(self, locator: Locator) -> Mapping[str, Any]:
        """The record at an index."""
        return self._records[locator[0]]

    def label(self, locator: Locator) -> tuple[str, str]:
        """The name with the index, twice."""
        label = f"{self.name}:{locator[0]}"
        return label, label


def canonical(record: Mapping[str, Any]) -> bytes:
    """Bytes that are equal for equal records; values that JSON lacks enter by their repr."""
    text = json.dumps(record, sort_keys=True, default=repr)
    return text.encode("utf-8", "surrogatepass")
