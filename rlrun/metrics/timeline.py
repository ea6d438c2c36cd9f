# SPDX-License-Identifier: Apache-2.0
"""What trainer, generators and environments did and when, and which groups a step waited for.

Everything here depends on the clock and is kept apart from the records that are equal in equal
runs: timeline.jsonl, a line per step. It is a view of the run: if it cannot be written it is
switched off with a warning, and training goes on.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, BinaryIO

from rlrun.metrics.stragglers import GroupSpan, Straggler, stragglers

_log = logging.getLogger(__name__)

_JOIN_S = 0.005
"""Spans of the same thing that are no further apart are one."""


ENGINE = "engine/"
"""Begins the lane of an engine; its name follows."""


class Lane(StrEnum):
    """Who did something; every engine has a lane of its own beside these."""

    TRAINER = "trainer"
    GENERATOR = "generator"
    """All generators together: busy while at least one request is with them."""
    ENVIRONMENT = "environment"
    """Busy while at least one trajectory is with an environment."""


@dataclass(slots=True)
class _Activity:
    """How many do the same thing, since when, and the finished spans since the last step.

    Entered by whoever begins with it and left at the end; several may be within it at once.
    """

    clock: Callable[[], float]
    count: int = 0
    since: float = 0.0
    spans: list[list[float]] = field(default_factory=list)

    def __enter__(self) -> None:
        if self.count == 0:
            self.since = self.clock()
        self.count += 1

    def __exit__(self, *error: object) -> None:
        self.count -= 1
        if self.count == 0:
            self.close(self.clock())

    def close(self, end: float) -> None:
        if self.spans and self.since - self.spans[-1][1] <= _JOIN_S:
            self.spans[-1][1] = end
        else:
            self.spans.append([self.since, end])


class Timeline:
    """Notes spans and groups as they happen; a line per step is taken from it.

    Args:
        environment: Name of the run's environment, for groups whose row names no agent.
        clock: Seconds, ascending; must be the clock of the times that ``ended`` is given.
    """

    def __init__(self, environment: str = "", clock: Callable[[], float] = time.monotonic) -> None:
        self.environment = environment
        self._clock = clock
        self._epoch = time.time() - clock()
        self._taken = clock()
        self._activities: dict[tuple[str, str], _Activity] = {}
        self._ended: list[GroupSpan] = []
        self._waiting: dict[int, GroupSpan] = {}
        self._step: list[Straggler] = []

    def busy(self, lane: str, what: str) -> AbstractContextManager[None]:
        """Within it the lane does something; several may do the same at once."""
        activity = self._activities.get((lane, what))
        if activity is None:
            activity = self._activities[lane, what] = _Activity(self._clock)
        return activity

    def engine(self, name: str) -> AbstractContextManager[None]:
        """Within it an engine has at least one request."""
        return self.busy(f"{ENGINE}{name}", "requests")

    def doing(self, lane: Lane) -> tuple[str, float]:
        """What a lane does and for how many seconds; ("", 0) if it does nothing that is noted.

        May be called from another thread.
        """
        for (of, what), activity in list(self._activities.items()):
            if of == lane and activity.count:
                return what, self._clock() - activity.since
        return "", 0.0

    def ended(self, group: GroupSpan) -> None:
        """An attempt at a group ended; if it finished, a later step may train it."""
        self._ended.append(group)
        if group.outcome == "finished":
            self._waiting[group.position] = group

    def discarded(self, position: int) -> None:
        """A finished group will not be trained."""
        self._waiting.pop(position, None)

    def step_begins(self, positions: Sequence[int], waited_since: float) -> None:
        """The batch is complete; the trainer had waited for it since then."""
        spans = [self._waiting.pop(p) for p in positions if p in self._waiting]
        self._step = stragglers(spans, waited_since)

    def take(self, step: int) -> dict[str, Any]:
        """All since it was last asked, as the line of a step; spans that go on are cut now.

        Times are seconds since "start", which is in seconds since the epoch.
        """
        start, now = self._taken, self._clock()
        lanes: dict[str, list[list[Any]]] = {lane.value: [] for lane in Lane}
        for (lane, what), activity in self._activities.items():
            # An engine that had nothing to do has a lane all the same.
            spans = lanes.setdefault(str(lane), [])
            if activity.count:
                activity.close(now)
                activity.since = now
            for began, end in activity.spans:
                spans.append([what, _short(began - start), _short(end - start)])
            activity.spans = []
        line = {
            "step": step,
            "start": round(self._epoch + start, 3),
            "seconds": _short(now - start),
            "lanes": {lane: sorted(spans, key=lambda s: s[1]) for lane, spans in lanes.items()},
            "groups": [group.to_json(start) for group in self._ended],
            "stragglers": [one.to_json(start) for one in self._step],
        }
        self._taken, self._ended, self._step = now, [], []
        return line


class TimelineFile:
    """Appends the lines of a timeline to a file.

    Args:
        path: The file; made if it does not exist.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: BinaryIO | None = None
        try:
            self._file = open(path, "ab")
        except OSError as error:
            self._switch_off(error)

    def write(self, line: dict[str, Any]) -> None:
        """Writes one whole line, or says that the file is switched off from now on."""
        if self._file is None:
            return
        try:
            self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
            self._file.flush()
        except OSError as error:
            self._switch_off(error)

    def close(self) -> None:
        """Closes the file. May be called twice."""
        file, self._file = self._file, None
        if file is not None:
            try:
                file.close()
            except OSError as error:
                self._switch_off(error)

    def _switch_off(self, error: OSError) -> None:
        self._file = None
        _log.warning("%s is switched off: %s. Training goes on.", self._path, error)


def _short(seconds: float) -> float:
    return round(seconds, 3)
