# SPDX-License-Identifier: Apache-2.0
"""Durations as DD:HH:MM:SS."""

from __future__ import annotations

import re
from fractions import Fraction

from rlrun.console.counted import counted

_FORMAT = re.compile(r"(?P<days>\d+):(?P<hours>\d\d):(?P<minutes>\d\d):(?P<seconds>\d\d)")
_NUMBER = r"\d{1,9}(?:\.\d{1,9})?"
_WITH_UNITS = re.compile(
    rf"({_NUMBER})\s*(?:(d(?:ays?)?)|(h(?:rs?|ours?)?)|(m(?:ins?|inutes?)?)|(s(?:ecs?|econds?)?))"
    r"(?![a-z])\s*",
    re.IGNORECASE,
)
_PARTS = re.compile(r"\d{1,9}(?::\d{1,9}){1,3}", re.ASCII)
_SECONDS = {"days": 86_400, "hours": 3_600, "minutes": 60, "seconds": 1}


class Duration(str):
    """The type of settings that are texts of this form; their values are plain texts."""


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
            raise ValueError(f"has {name}={value}, not below {limit}")
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise ValueError("is zero")
    return float(total)


def how_to_write(given: str) -> str:
    """What to write for something that ``parse_duration`` refuses: each meaning it may have."""
    meanings = [
        f"{_written(seconds)} for {meaning}"
        for meaning, seconds in _meanings(given.strip())
        if seconds > 0 and seconds.denominator == 1
    ]
    if not meanings:
        return "Write days, hours, minutes and seconds, such as 00:03:40:00, or null for no limit"
    *most, last = meanings
    return "Write " + (f"{', '.join(most)} or {last}" if most else last)


def _meanings(given: str) -> list[tuple[str, Fraction]]:
    if re.fullmatch(_NUMBER, given, re.ASCII):
        number = Fraction(given)
        units = ("seconds", "minutes", "hours")
        return [(f"{given.removesuffix('.0')} {unit}", number * _SECONDS[unit]) for unit in units]
    if given.isascii() and re.fullmatch(f"(?:{_WITH_UNITS.pattern})+", given, re.IGNORECASE):
        return [(given, sum(map(_seconds_of, _WITH_UNITS.finditer(given)), Fraction(0)))]
    if _PARTS.fullmatch(given) is None:
        return []
    parts, names = given.split(":"), list(_SECONDS)
    # Two parts are hours and minutes as well as minutes and seconds.
    starts = (1, 2) if len(parts) == 2 else (4 - len(parts),)
    found = []
    for start in starts:
        named = [(int(part), name) for part, name in zip(parts, names[start:], strict=False)]
        seconds = Fraction(sum(number * _SECONDS[name] for number, name in named))
        words = [counted(number, name.removesuffix("s")) for number, name in named if number]
        found.append((" and ".join(words), seconds))
    return found


def _seconds_of(match: re.Match[str]) -> Fraction:
    number, *units = match.groups()
    unit = next(name for name, said in zip(_SECONDS, units, strict=True) if said)
    return Fraction(number) * _SECONDS[unit]


def _written(seconds: Fraction) -> str:
    days, rest = divmod(int(seconds), 86_400)
    return f"{days:02}:{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
