# SPDX-License-Identifier: Apache-2.0
"""Lets the clock of the wall jump in every Python process that has this folder on PYTHONPATH.

RLRUN_CLOCK_JUMPS is a JSON list of [when, seconds]: from that moment of ``time.monotonic`` on,
which all processes of a machine share, ``time.time`` and ``time.time_ns`` are off by so much more.
Monotonic clocks go on as they were, as they do when somebody sets the clock of a machine.
Times of files, and what is not written in Python, are not shifted.
"""

import json
import os
import time

JUMPS = json.loads(os.environ.get("RLRUN_CLOCK_JUMPS", "[]"))


def _shift_ns(monotonic=time.monotonic) -> int:
    now = monotonic()
    return int(1e9 * sum(seconds for when, seconds in JUMPS if now >= when))


def _time_ns(real_ns=time.time_ns) -> int:
    return real_ns() + _shift_ns()


def _time() -> float:
    return _time_ns() / 1e9


if JUMPS:
    time.time, time.time_ns = _time, _time_ns
