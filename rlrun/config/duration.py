# SPDX-License-Identifier: Apache-2.0
"""Durations as DD:HH:MM:SS."""

from __future__ import annotations

import re

_FORMAT = re.compile(r"(?P<days>\d+):(?P<hours>\d\d):(?P<minutes>\d\d):(?P<seconds>\d\d)")


def parse_duration(text: str) -> float:
    """Seconds of a duration such as 00:03:40:00.

    Raises:
        ValueError: It is not DD:HH:MM:SS with HH below 24, MM and SS below 60, or it is zero.
    """
    match = _FORMAT.fullmatch(text)
    if match is None or not text.isascii():
        raise ValueError("is not of the form DD:HH:MM:SS")
    days, hours, minutes, seconds = (int(part) for part in match.groups())
    for name, value, limit in (("HH", hours, 24), ("MM", minutes, 60), ("SS", seconds, 60)):
        if value >= limit:
            raise ValueError(f"has {name}={value}, which must be below {limit}")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError("is zero")
    return float(total)
