# SPDX-License-Identifier: Apache-2.0
"""Answers in words: their comparable form, and the few phrases that mean a mathematical thing."""

from __future__ import annotations

import re
from fractions import Fraction

from rlrun.env.answers import regions
from rlrun.env.answers.nodes import Symbol, number
from rlrun.env.answers.shapes import Answer, Listing, Order, Scalar, Text
from rlrun.env.answers.units import DENOMINATORS, POWERS_OF_TEN

_MARKUP = re.compile(r"\\[a-zA-Z]+\*?|[{}$\\]")
_PUNCTUATION = re.compile(r"(?<!\d)[.,;:!?'\"()*_]+|[.,;:!?'\"()*_]+(?!\d)")
_ARTICLE = re.compile(r"^(?:an?|the) (?=\w)")
_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_PARTS = {**DENOMINATORS, "quarter": 4, "tenth": 10}
_VALUES: dict[str, Fraction] = {
    **{name: Fraction(value) for value, name in enumerate(_NUMERALS)},
    **{
        ten + (f" {_NUMERALS[unit]}" if unit else ""): Fraction(20 + 10 * place + unit)
        for place, ten in enumerate(_TENS)
        for unit in range(10)
    },
    **{
        f"{name} {unit}": Fraction(value * 10**power)
        for value, name in enumerate(_NUMERALS)
        for unit, power in POWERS_OF_TEN.items()
        if power > 1
    },
    **{
        f"{top} {name}{'s' if value > 1 else ''}": Fraction(value, bottom)
        for value, top in enumerate(_NUMERALS[1:10], 1)
        for name, bottom in _PARTS.items()
    },
    **dict.fromkeys(("half", "one half"), Fraction(1, 2)),
}
_NO_SOLUTION: Answer = Listing(Order.SET, ())
_PHRASES: dict[str, Answer] = {
    **dict.fromkeys(
        (
            f"{there}no {real}{thing}{exist}"
            for there in ("", "there is ", "there are ")
            for real in ("", "real ")
            for thing in ("solution", "solutions", "root", "roots")
            for exist in ("", " exist", " exists")
        ),
        _NO_SOLUTION,
    ),
    **dict.fromkeys(("empty set", "none"), _NO_SOLUTION),
    **dict.fromkeys(("all integers", "integers"), Scalar(Symbol("mathbb(Z)"))),
    **dict.fromkeys(
        ("all real numbers", "all reals", "the real numbers", "real numbers", "all real x"),
        regions.REALS,
    ),
    **dict.fromkeys(
        ("all positive real numbers", "positive real numbers", "all positive reals"),
        regions.POSITIVE,
    ),
    "dne": Text("does not exist"),
}


def words(text: str) -> str:
    """Text in lower case without markup, punctuation and a leading article."""
    text = _MARKUP.sub(" ", text).lower()
    return _ARTICLE.sub("", " ".join(_PUNCTUATION.sub(" ", text).split()))


def spoken(plain: str) -> Fraction | None:
    """The number that words say: "minus two-thirds", "one and a half", "2 and a half"."""
    plain = plain.replace("-", " ")
    unsigned = plain.removeprefix("negative ").removeprefix("minus ")
    whole, joint, part = unsigned.partition(" and ")
    value = Fraction(whole) if joint and whole.isdecimal() else _VALUES.get(whole)
    if joint:
        rest = _VALUES.get("one " + part.removeprefix("a ") if part.startswith("a ") else part)
        if value is None or value.denominator != 1 or rest is None or not 0 < rest < 1:
            return None
        value += rest
    return -value if value is not None and unsigned != plain else value


def text_answer(text: str) -> Answer:
    """Words as an answer; a number, the empty set or the real numbers if that is what they say."""
    plain = words(text)
    if (value := spoken(plain)) is not None:
        return Scalar(number(value))
    return _PHRASES.get(plain) or Text(plain)
