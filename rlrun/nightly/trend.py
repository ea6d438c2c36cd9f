# SPDX-License-Identifier: Apache-2.0
"""The trend file: a JSON line per run and nightly, which later nightlies are compared with."""

from __future__ import annotations

import json
import os
import platform
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rlrun.atomic import storage_error
from rlrun.errors import RESTORE, StorageError
from rlrun.run_dir.json_line import is_number, parse_object

WINDOW = 3
"""Nightlies in a row whose median is a measurement; a single one may have had luck."""


def machine() -> str:
    """What step times depend on: processor, cores and GPUs, not the name of the host."""
    import torch

    from rlrun.process.machine import available_cores

    parts = [f"{_processor()}, {available_cores()} cores"]
    if torch.cuda.is_available():
        parts.append(f"{torch.cuda.device_count()} x {torch.cuda.get_device_name(0)}")
    return ", ".join(parts)


def read_trend(path: Path) -> list[dict[str, Any]]:
    """All entries, oldest first; none without the file. A torn last line is left out.

    Raises:
        StorageError: A whole line is no entry.
    """
    entries: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                entry = parse_object(f"{path}:{number}", line)
                if not isinstance(entry.get("name"), str):
                    raise StorageError(f"{path}:{number}", "is no entry of a trend", RESTORE)
                entries.append(entry)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(path, "read", error) from error
    return entries


def baseline_step_s(
    entries: list[dict[str, Any]], name: str, machine_name: str, nightly: str
) -> float | None:
    """The seconds per step that a run should have.

    The lowest median of WINDOW passed nightlies in a row (of all, where there are fewer). It never
    rises, so that many small losses, each within the limit, do not go unnoticed; who makes a run
    slower on purpose raises its version.

    Args:
        entries: The trend.
        name: The run, with its version.
        machine_name: Others say nothing about this one.
        nightly: The present one, whose own entries are left out.
    """
    times = [
        float(entry["step_s"])
        for entry in entries
        if entry["name"] == name
        and entry.get("machine") == machine_name
        and entry.get("nightly") != nightly
        and entry.get("passed") is True
        and entry.get("step_s") is not None
        and is_number(entry["step_s"])
    ]
    if len(times) <= WINDOW:
        return statistics.median(times) if times else None
    return min(statistics.median(times[i : i + WINDOW]) for i in range(len(times) - WINDOW + 1))


def append_trend(path: Path, entry: Mapping[str, Any]) -> None:
    """Adds an entry, durably, unless the nightly has one of that name.

    Raises:
        StorageError: The file cannot be written.
    """
    same = ("nightly", "name")
    if any(all(old.get(key) == entry[key] for key in same) for old in read_trend(path)):
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "a+b") as file:
            _end_torn_line(file)
            file.write(json.dumps(entry, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise storage_error(path, "append to", error) from error


def _end_torn_line(file: Any) -> None:
    """Cuts off what a killed nightly left of a line."""
    file.seek(0)
    content = file.read()
    if content and not content.endswith(b"\n"):
        file.truncate(content.rfind(b"\n") + 1)


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
