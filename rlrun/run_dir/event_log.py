# SPDX-License-Identifier: Apache-2.0
"""The scheduler's event log: events.jsonl, one whole line per event, cut back on resume.

A line is {"seq": n, "event": {...}, "decisions": [{...}, ...]}; seq counts from 0 without gaps.
A line is handed to the operating system before the decisions in it are carried out, so a killed
process loses at most a torn last line; ``EventLog.sync`` makes lines survive a crash of the
machine and is called before a checkpoint is completed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from rlrun.atomic import write_file
from rlrun.console.counted import counted
from rlrun.errors import StorageError
from rlrun.scheduler import (
    Decision,
    Event,
    StepTrained,
    TokenCategory,
    decision_from_json,
    event_from_json,
)

_encode = json.JSONEncoder(separators=(",", ":")).encode
"""Made once: json.dumps makes an encoder for every call that wants no spaces."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of the log.

    Attributes:
        seq: Number of the event, from 0.
        event: What happened.
        decisions: What the scheduler decided then.
        end: Offset in bytes of the end of the line.
    """

    seq: int
    event: Event
    decisions: tuple[Decision, ...]
    end: int


class EventLog:
    """Appends to an event log.

    Args:
        path: The file; made if it does not exist.

    Raises:
        StorageError: The file cannot be opened or does not end with a whole line.
    """

    def __init__(self, path: Path) -> None:
        """Opens the log at its end."""
        self._path = path
        try:
            self._file = path.open("a+b", buffering=0)
            size = self._file.seek(0, os.SEEK_END)
            if size:
                self._file.seek(size - 1)
                if self._file.read(1) != b"\n":
                    self._file.close()
                    raise StorageError(
                        str(path), "the last line is torn", "Resume the run, which cuts it off"
                    )
        except OSError as error:
            raise StorageError(str(path), f"cannot be opened: {error.strerror}") from error

    def append(self, seq: int, event: Event, decisions: Sequence[Decision]) -> None:
        """Writes one line and hands it to the operating system.

        Args:
            seq: ``Scheduler.seq`` after the event.
            event: What happened.
            decisions: What the scheduler decided.

        Raises:
            StorageError: The line could not be written.
        """
        record = {
            "seq": seq,
            "event": event.to_json(),
            "decisions": [decision.to_json() for decision in decisions],
        }
        line = memoryview(_encode(record).encode() + b"\n")
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            raise StorageError(
                str(self._path), f"cannot be written: {error.strerror}", "Make room on the disk"
            ) from error

    def sync(self) -> None:
        """Makes all lines survive a crash of the machine.

        Raises:
            StorageError: The file could not be written out.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise StorageError(
                str(self._path), f"cannot be written: {error.strerror}", "Make room on the disk"
            ) from error

    def close(self) -> None:
        """Closes the file. May be called twice."""
        self._file.close()


class LogReader:
    """Reads an event log line by line, without holding it in memory.

    Args:
        path: The file.
        first_seq: Number of its first event; not 0 for a tail that was moved away.

    Attributes:
        torn: After reading: whether the last line is incomplete, as a crash leaves it. It is
            not among the lines read. Anywhere else a broken line is an error.

    Raises:
        StorageError: While iterating: the file cannot be read, or a line is broken or out of
            sequence.
    """

    def __init__(self, path: Path, first_seq: int = 0) -> None:
        """Opens nothing yet."""
        self._path = path
        self._first_seq = first_seq
        self.torn = False

    def __iter__(self) -> Iterator[LogLine]:
        """The whole lines, in order."""
        self.torn = False
        end = 0
        try:
            with self._path.open("rb") as file:
                for number, raw in enumerate(file):
                    end += len(raw)
                    last = file.peek(1) == b""
                    line = self._parse(raw, number, end, last)
                    if line is None:
                        self.torn = True
                        return
                    yield line
        except OSError as error:
            remedy = "Give the folder of a run; if it is one, restore the file from a copy"
            what = f"cannot be read: {error.strerror}"
            raise StorageError(str(self._path), what, remedy) from error

    def _parse(self, raw: bytes, number: int, end: int, last: bool) -> LogLine | None:
        where = f"{self._path}:{number + 1}"
        try:
            if not raw.endswith(b"\n"):
                raise ValueError("no end of line")
            record = json.loads(raw)
            line = LogLine(
                record["seq"],
                event_from_json(record["event"]),
                tuple(decision_from_json(decision) for decision in record["decisions"]),
                end,
            )
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            if last:
                return None
            raise StorageError(
                where,
                f"not a line of an event log ({type(error).__name__}: {error})",
                "Restore the file from a copy; only the very last line can be torn by a crash",
            ) from error
        expected = self._first_seq + number
        if line.seq != expected:
            raise StorageError(
                where,
                f"event {line.seq} where event {expected} belongs",
                "Restore the file from a copy",
            )
        return line


def check_history(path: Path, seq: int, steps: int, tokens: int) -> None:
    """Refuses a log that is not the one a checkpoint was written with. Changes nothing.

    A log of another run has, at the checkpoint's event, other steps or other numbers of tokens.

    Args:
        path: The event log.
        seq: Last event before the checkpoint.
        steps: That were trained until then.
        tokens: That these steps trained.

    Raises:
        StorageError: It is another log, ends too early, or cannot be read.
    """
    last, found = -1, [0, 0]
    for line in LogReader(path):
        if line.seq > seq:
            break
        last = line.seq
        if isinstance(line.event, StepTrained):
            found[0] += 1
            found[1] += line.event.tokens.get(TokenCategory.TRAINED, 0)
    _check_reaches(path, last, seq)
    if found != [steps, tokens]:
        has = f"{counted(found[0], 'step')} with {counted(found[1], 'trained token')}"
        wanted = f"{counted(steps, 'step')} with {counted(tokens, 'trained token')}"
        what = f"is not of this run: until event {seq} it has {has}, and the checkpoint {wanted}"
        raise StorageError(str(path), what, "Restore the file from a copy")


def _check_reaches(path: Path, last: int, seq: int) -> None:
    if last < seq:
        raise StorageError(
            str(path),
            f"ends at event {last} but the checkpoint is at event {seq}",
            "Restore the file from a copy, or move the newer checkpoints out of checkpoints/",
        )


@dataclass(frozen=True, slots=True)
class Cut:
    """What was moved away from the end of a log.

    Attributes:
        events: The whole lines' events, in order.
        moved_to: The file that holds the tail now, or None if there was nothing to move.
    """

    events: tuple[Event, ...]
    moved_to: Path | None


def truncate_after(path: Path, seq: int, superseded: Path) -> Cut:
    """Moves every line after event ``seq`` (and a torn last line) into a folder.

    A crash at any point loses nothing: the tail is in the folder before the log is cut, and doing
    it again, until an event is appended, returns the same.

    Args:
        path: The event log.
        seq: Last event to keep, as in the checkpoint; -1 keeps nothing.
        superseded: Folder for the tail; made if needed.

    Raises:
        StorageError: A file cannot be read or written, or the log ends before ``seq``.
    """
    keep, last = 0, -1
    events: list[Event] = []
    for line in LogReader(path):
        last = line.seq
        if line.seq <= seq:
            keep = line.end
        else:
            events.append(line.event)
    _check_reaches(path, last, seq)
    try:
        with path.open("r+b") as file:
            file.seek(keep)
            tail = file.read()
            tails = sorted(superseded.glob(f"{path.stem}_after_{seq:09d}_*{path.suffix}"))
            if not tail:
                return _done_before(tails, seq)
            target = superseded / f"{path.stem}_after_{seq:09d}_{len(tails):03d}{path.suffix}"
            if tails and tails[-1].read_bytes() == tail:
                target = tails[-1]
            else:
                superseded.mkdir(parents=True, exist_ok=True)
                write_file(target, tail)
            file.truncate(keep)
            os.fsync(file.fileno())
    except OSError as error:
        raise StorageError(
            str(error.filename or path), f"cannot be written: {error.strerror}"
        ) from error
    return Cut(tuple(events), target)


def _done_before(tails: Sequence[Path], seq: int) -> Cut:
    """What an earlier call moved: nothing was appended since, or it would be a tail now."""
    if not tails:
        return Cut((), None)
    events = tuple(line.event for line in LogReader(tails[-1], seq + 1))
    return Cut(events, tails[-1])
