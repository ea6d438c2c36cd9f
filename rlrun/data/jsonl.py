# SPDX-License-Identifier: Apache-2.0
"""Reads JSONL files: strictly, with exact line numbers, and without holding parsed rows.

Lines end at the byte 0x0A alone, so that other line separators inside texts split nothing.
Small data sets stay in memory as raw lines. Of larger ones only offsets stay; a row is then read
from its file when needed, and a checksum tells whether the file still is what it was.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from rlrun.data.bad_row import BadRow, shown
from rlrun.data.row_reader import NumberText
from rlrun.data.stores import Locator, RecordStore, Scanned
from rlrun.errors import DataError
from rlrun.strict_json import NameTwice, no_constant, unique_names

KEEP_IN_MEMORY_BYTES = 64 * 2**20
"""Data sets up to this size are independent of their files once loaded."""

MAX_DEPTH = 64
"""Deepest nesting of a row; far above any row format, far below Python's recursion limit."""

_WHITE_SPACE = b" \t\r\n"
_SURROGATE_ESCAPE = re.compile(rb"\\u[dD][89a-fA-F]")
_UTF16_MARKS = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


class JsonlStore(RecordStore):
    """Records of one or several JSONL files."""

    locator_width = 5  # file, line from 1, offset, length, CRC-32

    def __init__(self, name: str, paths: Sequence[Path]) -> None:
        self.name = name
        self._paths = paths
        self._names = [(path.name, str(path)) for path in paths]
        self._contents: dict[int, bytes] | None = None
        total = sum(_size(path) for path in paths)
        if total <= KEEP_IN_MEMORY_BYTES:
            self._contents = {index: _read(path) for index, path in enumerate(paths)}

    def scan(self) -> Iterator[Scanned]:
        """All records in order; blank lines are none."""
        for index, path in enumerate(self._paths):
            offset = 0
            for number, line in enumerate(self._lines(index), 1):
                start, offset = offset, offset + len(line)
                if number == 1:
                    start += _check_start(path, line)
                    line = line.removeprefix(codecs.BOM_UTF8)
                text = line.strip(_WHITE_SPACE)
                if not text:
                    continue
                start += len(line) - len(line.lstrip(_WHITE_SPACE))
                locator = (index, number, start, len(text), zlib.crc32(text))
                yield Scanned(locator, _parse_or_reason(text), text)

    def _lines(self, index: int) -> Iterator[bytes]:
        if self._contents is not None:
            yield from io.BytesIO(self._contents[index])
            return
        try:
            with self._paths[index].open("rb") as file:
                yield from file
        except OSError as error:
            _unreadable(self._paths[index], error)

    def fetch(self, locator: Locator) -> Mapping[str, Any]:
        """The record of a line.

        Raises:
            DataError: The file is gone or has other content now.
        """
        index, number, start, length, checksum = locator
        path = self._paths[index]
        if self._contents is not None:
            return parse_line(self._contents[index][start : start + length])
        try:
            with path.open("rb") as file:
                file.seek(start)
                text = file.read(length)
        except OSError as error:
            _unreadable(path, error)
        if zlib.crc32(text) != checksum:
            raise DataError(
                f"{path}:{number}",
                "the file has changed since it was loaded",
                "Put the file back and resume; data files must stay as they are during a run",
            )
        return parse_line(text)

    def label(self, locator: Locator) -> tuple[str, str]:
        """The file's name, and its path, with the line number."""
        name, path = self._names[locator[0]]
        return f"{name}:{locator[1]}", f"{path}:{locator[1]}"


def parse_line(line: bytes) -> dict[str, Any]:
    """The object on a line.

    Raises:
        BadRow: Not UTF-8, not strict JSON, not an object, a name twice, nested too deeply, or
            text that UTF-8 cannot hold.
    """
    try:
        text = line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise BadRow(
            "not UTF-8", f"byte 0x{byte:02x} at byte {error.start + 1} of the row"
        ) from None
    _check_depth(line)
    try:
        record, end = _decoder.raw_decode(text)
    except json.JSONDecodeError as error:
        what = error.msg.removesuffix(" at")
        raise BadRow("invalid JSON", f"{what} at column {error.colno}: {shown(text)}") from None
    except NameTwice as error:
        raise BadRow("duplicate field", str(error)) from None
    except ValueError as error:
        raise BadRow("invalid number", str(error)) from None
    if end != len(text):
        raise BadRow("invalid JSON", f"text after the row at column {end + 1}: {shown(text[end:])}")
    if not isinstance(record, dict):
        raise BadRow("not an object", f"the row is {shown(record)}")
    if _SURROGATE_ESCAPE.search(line):
        _check_surrogates(record)
    if float in map(type, record.values()):
        _keep_number_texts(record, text)
    return record


def _parse_or_reason(line: bytes) -> dict[str, Any] | BadRow:
    try:
        return parse_line(line)
    except BadRow as error:
        return error


def _finite(text: str) -> float:
    return float(NumberText(text))


# One decoder for all rows: making one takes longer than reading a row.
_decoder = json.JSONDecoder(
    object_pairs_hook=unique_names, parse_constant=no_constant, parse_float=_finite
)


def _check_depth(line: bytes) -> None:
    # Brackets inside texts only cost a closer look.
    if line.count(b"[") + line.count(b"{") <= MAX_DEPTH:
        return
    depth = 0
    for bracket in re.findall(rb'[\[\]{}]|"(?:[^"\\]|\\.)*+"', line):
        depth += (bracket in b"[{") - (bracket in b"]}")
        if depth > MAX_DEPTH:
            raise BadRow("nested too deeply", f"more than {MAX_DEPTH} levels")


def _check_surrogates(record: Mapping[str, Any]) -> None:
    try:
        json.dumps(record, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError as error:
        code = ord(error.object[error.start])
        raise BadRow("not Unicode text", f"\\u{code:04x} is half of a surrogate pair") from None


def _keep_number_texts(record: dict[str, Any], text: str) -> None:
    """Gives top-level numbers their spelling, so that an answer stays exact."""
    literal = json.loads(text, parse_float=NumberText)
    for name, value in record.items():
        if isinstance(value, float):
            record[name] = literal[name]


def _check_start(path: Path, line: bytes) -> int:
    """Length of the byte order mark; refuses files that are no JSONL at all."""
    if line.startswith(_UTF16_MARKS):
        raise DataError(f"{path}:1", "the file is UTF-16", "Convert it to UTF-8")
    body = line.removeprefix(codecs.BOM_UTF8)
    if path.suffix.lower() == ".json" and body.lstrip(_WHITE_SPACE).startswith(b"["):
        raise DataError(
            f"{path}:1", "the file holds a JSON array", "Write one JSON object per line instead"
        )
    return len(line) - len(body)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        _unreadable(path, error)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        _unreadable(path, error)


def _unreadable(path: Path, error: OSError) -> NoReturn:
    raise DataError(
        str(path), f"cannot be read ({error.strerror or error})", "Check the path and permissions"
    ) from error
