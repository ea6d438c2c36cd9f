# SPDX-License-Identifier: Apache-2.0
"""Days of the calendar in one spelling; times of day and ratios, which are written alike."""

from __future__ import annotations

import re
from fractions import Fraction
from itertools import combinations

from rlrun.env.answers.nodes import Node, Number, Operation
from rlrun.env.answers.quantities import Decider
from rlrun.env.answers.shapes import Answer, Colons, Scalar

_MONTHS = (
    "january february march april may june july august september october november december".split()
)
_MONTH = r"(?P<month>[A-Za-z]{3,9})\.?"
_DAY = r"(?P<day>\d{1,2})(?:\s?(?:st|nd|rd|th))?"
_YEAR = r"(?:,?\s*(?P<year>\d{4}))?"
_DATES = (
    re.compile(rf"{_MONTH}\s*(?:the\s+)?{_DAY}{_YEAR}"),
    re.compile(rf"(?:the\s+)?{_DAY}\s*(?:of\s+)?{_MONTH}{_YEAR}"),
)
_ZERO = Number(Fraction(0))
_ISO = re.compile(r"(\d{4})-(\d{2})-(\d{2})")


def day_of(text: str) -> str | None:
    """A date as month, day and perhaps year, "march 15 2024"; None for anything else."""
    if iso := _ISO.fullmatch(text):
        year, month, day = iso.groups()
        if 1 <= int(month) <= 12 and 1 <= int(day) <= 31:
            return f"{_MONTHS[int(month) - 1]} {int(day)} {year}"
        return None
    for pattern in _DATES:
        if (match := pattern.fullmatch(text)) and (name := _month(match.group("month"))):
            return f"{name} {int(match.group('day'))} {match.group('year') or ''}".rstrip()
    return None


def _month(word: str) -> str:
    word = word.lower()
    return next((n for n in _MONTHS if n == word or word in (n[:3], n[:4])), "")


def _times(clock: Colons) -> set[tuple[Fraction, ...]]:
    """The times of day that a clock time can mean, as it stands and on the clock of 24 hours."""
    parts = tuple(part.value for part in clock.parts if isinstance(part, Number))
    if not clock.suffix:
        return {parts}
    hour = parts[0] % 12 + (12 if clock.suffix == "pm" else 0)
    return {parts, (hour, *parts[1:])}


def same_colons(gold: Answer, answer: Answer, decider: Decider) -> bool:
    """Whether two times of day or two ratios are the same, or a ratio and a number.

    Raises:
        Undecided: The decider cannot tell.
    """
    if isinstance(gold, Colons) and isinstance(answer, Colons):
        if len(gold.parts) != len(answer.parts) or not _suffixes_agree(gold, answer):
            return False
        if gold.clock and answer.clock:
            return bool(_times(gold) & _times(answer))
        if gold.suffix or answer.suffix or (gold.clock != answer.clock and _ZERO in gold.parts):
            return False
        return _same_ratio(gold.parts, answer.parts, decider)
    colons, plain = (gold, answer) if isinstance(gold, Colons) else (answer, gold)
    if not isinstance(colons, Colons) or not isinstance(plain, Scalar):
        return False
    if colons.suffix and all(part == Number(Fraction(0)) for part in colons.parts[1:]):
        return decider.equal(colons.parts[0], plain.node)
    if colons.clock or colons.suffix or len(colons.parts) != 2:
        return False
    return decider.equal(Operation("div", colons.parts), plain.node)


def _same_ratio(left: tuple[Node, ...], right: tuple[Node, ...], decider: Decider) -> bool:
    """Whether two ratios are proportional; one of zeros alone is no ratio."""
    if any(all(decider.equal(part, _ZERO) for part in side) for side in (left, right)):
        return False
    return all(
        decider.equal(Operation("mul", (a, d)), Operation("mul", (b, c)))
        for (a, c), (b, d) in combinations(zip(left, right, strict=True), 2)
    )


def _suffixes_agree(gold: Colons, answer: Colons) -> bool:
    return not gold.suffix or not answer.suffix or gold.suffix == answer.suffix
