# SPDX-License-Identifier: Apache-2.0
"""Answers in words: their comparable form, and the few phrases that mean a mathematical thing."""

from __future__ import annotations

import re
from fractions import Fraction

from rlrun.env.answers import regions
from rlrun.env.answers.nodes import number
from rlrun.env.answers.shapes import Answer, Listing, Order, Scalar, Text
from rlrun.env.answers.units import POWERS_OF_TEN

_MARKUP = re.compile(r"\\[a-zA-Z]+\*?|[{}$\\]")
_PUNCTUATION = re.compile(r"(?<!\d)[.,;:!?'\"()*_]+|[.,;:!?'\"()*_]+(?!\d)")
_ARTICLE = re.compile(r"^(?:an?|the) (?=\w)")
_NUMERALS = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen "
    "sixteen seventeen eighteen nineteen twenty"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_DENOMINATORS = {"third": 3, "fourth": 4, "quarter": 4, "fifth": 5, "sixth": 6, "seventh": 7}
_DENOMINATORS |= {"eighth": 8, "ninth": 9, "tenth": 10}
_NO_SOLUTION: Answer = Listing(Order.SET, ())
_PHRASES: dict[str, Answer] = {
    **dict.fromkeys(
        (
            "no solution",
            "no solutions",
            "no real solution",
            "no real solutions",
            "there is no solution",
            "there are no solutions",
            "there are no real solutions",
            "no solutions exist",
            "no solution exists",
            "empty set",
            "the empty set",
        ),
        _NO_SOLUTION,
    ),
    **dict.fromkeys(
        ("all real numbers", "all reals", "the real numbers", "real numbers", "all real x"),
        regions.REALS,
    ),
    **dict.fromkeys(
        ("all positive real numbers", "positive real numbers", "all positive reals"),
        regions.POSITIVE,
    ),
    **{
        f"{top} {name}{'s' if value > 1 else ''}": Scalar(number(Fraction(value, bottom)))
        for value, top in enumerate(_NUMERALS[1:10], 1)
        for name, bottom in _DENOMINATORS.items()
    },
    "one half": Scalar(number(Fraction(1, 2))),
    "dne": Text("does not exist"),
    **{name: Scalar(number(value)) for value, name in enumerate(_NUMERALS)},
    **{
        ten + (f"{joint}{_NUMERALS[unit]}" if unit else ""): Scalar(number(20 + 10 * place + unit))
        for place, ten in enumerate(_TENS)
        for unit in range(10)
        for joint in "- "
    },
    **{
        f"{name} {unit}": Scalar(number(value * 10**power))
        for value, name in enumerate(_NUMERALS)
        for unit, power in POWERS_OF_TEN.items()
        if power > 1
    },
}


def words(text: str) -> str:
    """Text in lower case without markup, punctuation and a leading article."""
    text = _MARKUP.sub(" ", text).lower()
    return _ARTICLE.sub("", " ".join(_PUNCTUATION.sub(" ", text).split()))


def text_answer(text: str) -> Answer:
    """Words as an answer; a phrase for the empty set or the real numbers is that set."""
    plain = words(text)
    return _PHRASES.get(plain) or Text(plain)
