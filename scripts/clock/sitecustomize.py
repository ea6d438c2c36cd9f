# SPDX-License-Identifier: Apache-2.0
"""Lets the clock of the wall jump in every Python process that has this folder on PYTHONPATH.

RLRUN_CLOCK_JUMPS is a JSON list of [when, seconds]: from that moment of ``time.monotonic`` on,
which all processes of a machine share, ``time.time`` and ``time.time_ns`` are off by so much more.
Monotonic clocks go on as they were, as they do when somebody sets the clock of a machine.
Times of files, and what is not written in Python, are not shifted.
"""

from __future__ import annotations

import json
import os
import time

JUMPS = json.loads(os.environ.get("RLRUN_CLOCK_JUMPS", "[]"))


REAL_NS = time.time_ns


def shifted_ns() -> int:
    """What the clock of the wall says."""
    now = time.monotonic()
    return REAL_NS() + int(1e9 * sum(seconds for when, seconds in JUMPS if now >= when))


def shifted() -> float:
    """The same in seconds."""
    return shifted_ns() / 1e9


if JUMPS:
    time.time, time.time_ns = shifted, shifted_ns
