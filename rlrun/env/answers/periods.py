# SPDX-License-Identifier: Apache-2.0
"""Decimals with a period: digits that repeat for ever."""

from __future__ import annotations

import re
from collections.abc import Sequence
from fractions import Fraction
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rlrun.env.answers.lexer import Token

_DECIMAL = re.compile(r"\d*\.\d+", re.ASCII)
_PERIOD = re.compile(r"\d+", re.ASCII)


def repeating(digits: str, period: str) -> Fraction:
    """Value of ``digits`` (with a decimal point) followed by ``period`` for ever."""
    decimals = len(digits.partition(".")[2])
    tail = Fraction(int(period), (10 ** len(period) - 1) * 10**decimals)
    return Fraction(digits.rstrip(".") or "0") + tail


def periodic(tokens: Sequence[Token]) -> Fraction | None:
    """The value of "0.8(3)" with its period in brackets; None for all other tokens.

    It must be all there is: within an expression it is a product, which nobody leaves as an answer.
    """
    negative = bool(tokens) and tokens[0].text == "-"
    parts = tokens[negative:]
    if len(parts) != 4 or any(part.spaced for part in parts[1:]):
        return None
    digits, opening, period, closing = (part.text for part in parts)
    if (opening, closing) != ("(", ")") or not _DECIMAL.fullmatch(digits):
        return None
    if not _PERIOD.fullmatch(period):
        return None
    value = repeating(digits, period)
    return -value if negative else value
