# SPDX-License-Identifier: Apache-2.0
"""TensorBoard event files, written with TensorBoard's own record format and without torch."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from pathlib import Path

_VERSION = "brain.Event:2"


class TensorBoardSink:
    """One event file per process; each step is one event, written and flushed at once."""

    name = "TensorBoard"

    def __init__(self, folder: Path, first_step: int) -> None:
        """Makes the event file.

        Args:
            folder: The event files' folder, made if needed.
            first_step: The first step that will be written. Events of this and later steps in older
                files of the folder (from before a resume) disappear from TensorBoard's view.

        Raises:
            OSError: The file cannot be made.
        """
        # Imported here, so that what only reads a run does not load protobuf. No stubs exist.
        from tensorboard.compat.proto.event_pb2 import (  # type: ignore[import-untyped]
            Event,
            SessionLog,
        )
        from tensorboard.compat.proto.summary_pb2 import (  # type: ignore[import-untyped]
            Summary,
        )
        from tensorboard.summary.writer.record_writer import (  # type: ignore[import-untyped]
            RecordWriter,
        )

        self._event, self._summary = Event, Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer = RecordWriter(open(_next_file(folder), "xb"))
        start = SessionLog(status=SessionLog.START)
        for event in (
            Event(wall_time=time.time(), file_version=_VERSION),
            Event(wall_time=time.time(), step=first_step, session_log=start),
        ):
            self._writer.write(event.SerializeToString())
        self._writer.flush()

    def write(self, step: int, wall_time: float, values: Mapping[str, float | None]) -> None:
        """Writes the finite values of a step.

        Raises:
            OSError: The event file cannot be written.
        """
        finite = {n: v for n, v in values.items() if v is not None and math.isfinite(v)}
        scalars = [self._summary.Value(tag=n, simple_value=v) for n, v in finite.items()]
        event = self._event(wall_time=wall_time, step=step, summary=self._summary(value=scalars))
        self._writer.write(event.SerializeToString())
        self._writer.flush()

    def close(self, failed: bool = False) -> None:
        """Closes the event file, which has no word for a failure. May be called twice.

        Raises:
            OSError: The rest cannot be written.
        """
        self._writer.close()


def _next_file(folder: Path) -> Path:
    """A name that sorts behind all others: TensorBoard reads the files of a folder by name."""
    taken = [p.name.split(".")[3] for p in folder.glob("events.out.tfevents.*.rlrun")]
    latest = max((int(number) for number in taken if number.isdigit()), default=0)
    return folder / f"events.out.tfevents.{max(int(time.time()), latest + 1):010d}.rlrun"
