# SPDX-License-Identifier: Apache-2.0
"""Metrics to disk: one whole line per step in metrics.jsonl, and the same values to the sinks.

metrics.jsonl is the record of the run, so failing to write it ends the run; every other sink is a
view of it, and one that fails is switched off with a notice.
"""

from __future__ import annotations

import json
import logging
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from rlrun.atomic import storage_error
from rlrun.errors import RESTORE, StorageError
from rlrun.metrics.registry import find
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.json_line import is_integer, is_number, parse_object
from rlrun.sinks.mlflow_sink import MlflowSink
from rlrun.sinks.tensorboard import TensorBoardSink
from rlrun.sinks.wandb_sink import WandbSink

if TYPE_CHECKING:
    from rlrun.config.schema import Logging

_log = logging.getLogger(__name__)


class Sink(Protocol):
    """Takes the numbers of each step; None stands for a value that is not finite."""

    name: str

    def write(self, step: int, wall_time: float, values: Mapping[str, float | None]) -> None:
        """Writes the values of a step. Raises OSError if it cannot."""

    def close(self, failed: bool = False) -> None:
        """Ends the sink. Raises OSError if something cannot be written."""


class MetricsLogger:
    """Writes the metrics of each step, in steps that ascend.

    On a resume it is made after RunDir.supersede, and goes on behind the last line that is left.
    """

    def __init__(
        self, run_dir: RunDir, settings: Logging, clock: Callable[[], float] = time.time
    ) -> None:
        """Opens metrics.jsonl behind its last line, and the sinks.

        Args:
            run_dir: Where to.
            settings: Which sinks there are beside metrics.jsonl.
            clock: Seconds since the epoch.

        Raises:
            StorageError: metrics.jsonl cannot be opened or has a torn last line.
        """
        self._path = run_dir.metrics
        self._clock = clock
        self._last_step = _last_step(self._path)
        self._noticed: set[tuple[str, str]] = set()
        try:
            # Unbuffered: a line reaches the kernel in one write, so readers see whole lines.
            self._file = open(self._path, "ab", buffering=0)
        except OSError as error:
            raise storage_error(self._path, "open", error) from error
        self._sinks: list[Sink] = []
        for name, make in self._makers(run_dir, settings):
            try:
                self._sinks.append(make())
            except OSError as error:
                self._switch_off(name, error)

    def _makers(
        self, run_dir: RunDir, settings: Logging
    ) -> Iterator[tuple[str, Callable[[], Sink]]]:
        """(name, how to make it) of every sink that the settings ask for."""
        if settings.tensorboard:
            first = self._last_step + 1
            yield "TensorBoard", lambda: TensorBoardSink(run_dir.tensorboard, first)
        if settings.wandb.enabled:
            yield "wandb", lambda: WandbSink(run_dir, settings.wandb)
        if settings.mlflow.enabled:
            yield "mlflow", lambda: MlflowSink(run_dir, settings.mlflow)

    @property
    def last_step(self) -> int:
        """The last step that has a line; -1 if there is none."""
        return self._last_step

    def log(self, step: int, values: Mapping[str, object]) -> None:
        """Writes the line of a step.

        Numbers of any library, and tensors and arrays of one element, are written as numbers.
        A value that is not finite becomes null; one that is no number is left out. Each is said
        once per name.

        Raises:
            UndeclaredMetric: A name is not declared.
            ValueError: The step has a line already, or a later one has.
            StorageError: metrics.jsonl cannot be written.
        """
        if step <= self._last_step:
            raise ValueError(f"step {step} is logged after step {self._last_step}")
        now = self._clock()
        numbers = self._numbers(values)
        line = json.dumps({"step": step, "time": now, **numbers}, allow_nan=False) + "\n"
        self._append(line.encode())
        self._last_step = step
        for sink in list(self._sinks):
            try:
                sink.write(step, now, numbers)
            except OSError as error:
                self._sinks.remove(sink)
                self._switch_off(sink.name, error)

    def sync(self) -> None:
        """Makes all lines durable. Belongs before a checkpoint, which must not know more steps.

        Raises:
            StorageError: The disk refuses.
        """
        try:
            os.fsync(self._file.fileno())
        except OSError as error:
            raise storage_error(self._path, "write", error) from error

    def close(self, failed: bool = False) -> None:
        """Ends all sinks, which show whether the run failed. May be called twice."""
        self._file.close()
        for sink in self._sinks:
            try:
                sink.close(failed)
            except OSError as error:
                self._switch_off(sink.name, error)
        self._sinks.clear()

    def _append(self, line: bytes) -> None:
        start = os.fstat(self._file.fileno()).st_size
        try:
            # A short write goes on, to learn from the next one why (most often a full disk).
            while line:
                line = line[self._file.write(line) :]
        except OSError as error:
            os.ftruncate(self._file.fileno(), start)
            raise storage_error(self._path, "write", error) from error

    def _numbers(self, values: Mapping[str, object]) -> dict[str, float | None]:
        numbers: dict[str, float | None] = {}
        for name, value in values.items():
            find(name)
            number = as_number(value)
            if number is None:
                kind = type(value).__name__
                self._notice(name, "skipped", f"metric {name} is left out: {kind} is no number.")
            elif not math.isfinite(number):
                self._notice(name, "not finite", f"metric {name} is {number}; written as null.")
                numbers[name] = None
            else:
                numbers[name] = number
        return numbers

    def _notice(self, name: str, kind: str, text: str) -> None:
        if (name, kind) not in self._noticed:
            self._noticed.add((name, kind))
            _log.warning("%s", text)

    def _switch_off(self, name: str, error: OSError) -> None:
        _log.warning("%s is switched off: %s. metrics.jsonl goes on.", name, error)


def as_number(value: object) -> float | None:
    """A Python number for a number of any library, or None for what is not one number.

    Integers stay integers, unless no float is that large; booleans become 0 or 1.
    """
    if isinstance(value, int):
        return int(value) if abs(value) < 1e300 else math.inf if value > 0 else -math.inf
    if isinstance(value, float):
        return float(value)
    item = getattr(value, "item", None)
    if not callable(item):
        return None
    try:
        inner = item()
    except (TypeError, ValueError, RuntimeError):
        # NumPy and torch refuse in their own ways if there is not exactly one element.
        return None
    return as_number(inner) if isinstance(inner, int | float) else None


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """The lines of a metrics.jsonl. A last line that is still being written is left out.

    Raises:
        StorageError: The file cannot be read, or a whole line of it is damaged (with its number).
    """
    lines: list[dict[str, Any]] = []
    try:
        with open(path, "rb") as file:
            for number, line in enumerate(file, start=1):
                if line.endswith(b"\n"):
                    lines.append(_parse(path, number, line))
    except OSError as error:
        raise storage_error(path, "read", error) from error
    return lines


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    where = f"{path}:{number}"
    values = parse_object(where, line)
    if not is_integer(values.get("step")):
        raise StorageError(where, "is no line of metrics: it has no step", RESTORE)
    for name, value in values.items():
        if not is_number(value):
            raise StorageError(where, f"{name} is no finite number", RESTORE)
    return values


def _last_step(path: Path) -> int:
    number, last = 0, b""
    try:
        if path.exists():
            with open(path, "rb") as file:
                for number, last in enumerate(file, start=1):  # noqa: B007 (the last one counts)
                    pass
    except OSError as error:
        raise storage_error(path, "read", error) from error
    if not last:
        return -1
    if not last.endswith(b"\n"):
        remedy = "Continue the run with `rlrun resume`, which sets it aside"
        raise StorageError(f"{path}:{number}", "is a torn line", remedy)
    step: int = _parse(path, number, last)["step"]
    return step
