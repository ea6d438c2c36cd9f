# SPDX-License-Identifier: Apache-2.0
"""Equality of two quantities: values, units, percentages, angles and lower-case option letters."""

from __future__ import annotations

from fractions import Fraction
from typing import Protocol

from rlrun.env.answers.exact import Undefined, to_fraction
from rlrun.env.answers.families import renamed, same_family
from rlrun.env.answers.nodes import Constant, Node, Number, Operation, Symbol, Undecided, any_node
from rlrun.env.answers.shapes import Named, Rounded, Scalar
from rlrun.env.answers.units import Unit

_MAX_DECIMALS = 30
_PERCENT = Fraction(1, 100)
_DEGREES, _RADIANS = ((("degree", 1),), (("radian", 1),))


class Decider(Protocol):
    """Equality of expressions."""

    def equal(self, left: Node, right: Node) -> bool:
        """Whether two expressions have the same value wherever both are defined."""

    def near(self, node: Node, value: Fraction, tolerance: Fraction) -> bool:
        """Whether a constant expression differs from a number by no more than a tolerance."""

    def ratio_sign(self, left: Node, right: Node) -> int:
        """The sign of the constant that one expression is of the other, 0 if there is none."""

    def calculus(self, left: str, right: str) -> bool:
        """Equality of two cleaned texts, at least one of which needs computer algebra."""


def same_quantity(gold: Scalar, answer: Scalar, decider: Decider) -> bool:
    """Whether two quantities are equal; a unit that only one of them has is taken as understood.

    Raises:
        Undecided: The decider cannot tell.
    """
    if gold.unit is not None and answer.unit is None and answer.letter is not None:
        answer = Scalar(*answer.letter)
    elif answer.unit is not None and gold.unit is None and gold.letter is not None:
        gold = Scalar(*gold.letter)
    answer = renamed(gold, answer)
    left, right = gold.unit, answer.unit
    if left is not None and right is not None:
        if {left.dimensions, right.dimensions} == {_DEGREES, _RADIANS}:
            return decider.equal(_in_radians(gold), _in_radians(answer))
        if left.dimensions != right.dimensions:
            return _degrees_of_something(left, right) and decider.equal(gold.node, answer.node)
        if left.factor == right.factor:
            return decider.equal(gold.node, answer.node)
        return decider.equal(_scaled(gold.node, left.factor), _scaled(answer.node, right.factor))
    if _same_letter(gold.node, answer.node) or decider.equal(gold.node, answer.node):
        return True
    for quantity, plain in ((gold, answer), (answer, gold)):
        if quantity.unit is None:
            continue
        if quantity.unit.is_only("percent"):
            return decider.equal(_scaled(quantity.node, _PERCENT), plain.node)
        if quantity.unit.is_only("degree") and any_node(plain.node, lambda n: n == Constant("pi")):
            return decider.equal(_in_radians(quantity), plain.node)
    if left is None and right is None and gold.letter is not None and answer.letter is not None:
        return same_quantity(Scalar(*gold.letter), Scalar(*answer.letter), decider)
    return same_family(gold, answer, decider)


def is_near(rounded: Rounded, decider: Decider) -> bool:
    """Whether the decimal is the expression, rounded to its last place."""
    exact, shown = (a.value if isinstance(a, Named) else a for a in (rounded.exact, rounded.shown))
    if not isinstance(exact, Scalar) or not isinstance(shown, Scalar):
        return False
    try:
        value = to_fraction(shown.node)
    except (Undecided, Undefined):
        return False
    for decimals in range(_MAX_DECIMALS):
        if (value * 10**decimals).denominator == 1:
            return decider.near(exact.node, value, Fraction(1, 2 * 10**decimals))
    return False


def _degrees_of_something(left: Unit, right: Unit) -> bool:
    """Whether one side has a bare degree sign and the other says of which temperature scale."""
    names = {unit.dimensions[0][0] for unit in (left, right)}
    return "degree" in names and bool(names & {"celsius", "fahrenheit"})


def _in_radians(angle: Scalar) -> Node:
    if angle.unit is None or not angle.unit.is_only("degree"):
        return angle.node
    return Operation("mul", (_scaled(angle.node, Fraction(1, 180)), Constant("pi")))


def _scaled(node: Node, factor: Fraction) -> Node:
    return Operation("mul", (node, Number(factor)))


def _same_letter(gold: Node, answer: Node) -> bool:
    """An option letter in lower case."""
    return (
        isinstance(gold, Symbol)
        and isinstance(answer, Symbol)
        and gold.name in tuple("ABCDEFGH")
        and answer.name.upper() == gold.name
    )
