# SPDX-License-Identifier: Apache-2.0
"""status.json: what a run is doing or how it ended, in a form that job schedulers can read."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from enum import StrEnum
from pathlib import Path

from rlrun.atomic import storage_error, write_file
from rlrun.errors import StorageError
from rlrun.run_dir.json_line import is_integer, is_number, is_text

_REMEDY = "Remove it: a run can do without, and writes it anew"


class RunState(StrEnum):
    """What a run is doing or how it ended."""

    RUNNING = "running"
    DONE = "done"
    TIME_LIMIT = "time_limit"
    """Stopped and saved because of checkpoint_must_save_by; resume goes on."""
    INTERRUPTED = "interrupted"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Status:
    """Content of status.json.

    Attributes:
        state: What the run is doing or how it ended.
        reason: A sentence for people ("" while running).
        step: The last finished step; 0 before the first.
        time: When this was written, in seconds since the epoch.
        pid: The process that wrote it.
        exit_code: What the process ends with; None while it runs.
    """

    state: RunState
    reason: str
    step: int
    time: float
    pid: int
    exit_code: int | None


def write_status(path: Path, status: Status) -> None:
    """Replaces the file in one go.

    Raises:
        StorageError: It cannot be written.
    """
    write_file(path, json.dumps(asdict(status)) + "\n")


def read_status(path: Path) -> Status | None:
    """What the file says, or None if there is none.

    Raises:
        StorageError: It is not what ``write_status`` writes.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        status = Status(**{**values, "state": RunState(values["state"])})
    except FileNotFoundError:
        return None
    except OSError as error:
        raise storage_error(path, "read", error) from error
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise StorageError(str(path), f"is not a status: {error}", _REMEDY) from error
    fits = is_text(status.reason) and is_number(status.time) and status.time is not None
    if not fits or not all(map(is_integer, (status.step, status.pid, status.exit_code or 0))):
        raise StorageError(str(path), "is not a status: a value is of another type", _REMEDY)
    return status
