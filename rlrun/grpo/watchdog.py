# SPDX-License-Identifier: Apache-2.0
"""Logs the state of a run that makes no progress any more."""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import traceback

from rlrun.scheduler.machine import Scheduler

log = logging.getLogger(__name__)

MOST_TASKS = 50


def dump(scheduler: Scheduler) -> None:
    """Logs the state of the scheduler and the stacks of all threads and tasks."""
    log.error("scheduler: waiting for %s, in flight %s", scheduler.waiting, scheduler.in_flight)
    log.error("scheduler state: %s", json.dumps(scheduler.state()))
    for thread, frame in sys._current_frames().items():
        log.error("thread %d:\n%s", thread, "".join(traceback.format_stack(frame)))
    for task in list(asyncio.all_tasks())[:MOST_TASKS]:
        frames = "".join(
            line for frame in task.get_stack() for line in traceback.format_stack(frame, limit=1)
        )
        log.error("task %s:\n%s", task.get_name(), frames)
