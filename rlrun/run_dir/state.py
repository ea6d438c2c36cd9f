# SPDX-License-Identifier: Apache-2.0
"""How a run stands, in words: what status.json says, checked against the lock."""

from __future__ import annotations

import time

from rlrun.console.step_line import duration
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.status import RunState

_ENDS = {"max_steps": "all steps made", "data_end": "all data used", "time_limit": "time limit"}


def reason_in_words(reason: str) -> str:
    """Why a run ended; a reason that is none of rlrun's own words is a sentence already."""
    return _ENDS.get(reason, reason)


def state_in_words(run_dir: RunDir) -> str:
    """State, reason and last step of a run; one that says it runs and holds no lock was killed.

    Of a run that did not end by itself also how long ago it said so: at its start, then after each
    step.

    Raises:
        StorageError: status.json is damaged.
    """
    status = run_dir.read_status()
    if status is None:
        return "not started yet"
    state = status.state.value
    if status.state is RunState.RUNNING and not run_dir.in_use():
        state = f"killed (process {status.pid} said it runs, but nothing holds the run directory)"
    reason = f" ({reason_in_words(status.reason)})" if status.reason not in ("", state) else ""
    ago = ""
    if status.state is RunState.RUNNING:
        ago = f", {duration(max(0.0, time.time() - status.time))} ago"
    return f"{state}{reason}, step {status.step}{ago}"
