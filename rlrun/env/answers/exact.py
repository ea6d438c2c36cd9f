# SPDX-License-Identifier: Apache-2.0
"""Exact rational arithmetic over expression trees, bounded in size: what needs no child process."""

from __future__ import annotations

import math
import re
from fractions import Fraction

from rlrun.env.answers.nodes import (
    Constant,
    Node,
    Number,
    Operation,
    Symbol,
    Undecided,
    infinite_sign,
)

MAX_BITS = 20_000
"""Largest numerator or denominator; a few such products still take well under a millisecond."""
_MAX_FACTORIAL = 1_500
_MAX_BINOMIAL = 2_000
_MAX_ROOT = 64
_PLAIN = re.compile(r"[+-]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|[+-]?\.\d+")
_PLAIN_FRACTION = re.compile(r"(-?)(?:\\[dt]?frac\{(\d+)\}\{(\d+)\}|(\d+)/(\d+))")
_MAX_PLAIN = 400


class Undefined(Exception):  # a value, not a fault: division by zero and the like
    """An expression has no value; it equals nothing."""


def plain_number(text: str) -> Fraction | None:
    """The value of a bare numeral or fraction, or None: the quick way for most answers."""
    if len(text) > _MAX_PLAIN:
        return None
    if _PLAIN.fullmatch(text) and not text.lstrip("+-").startswith("0,"):
        return Fraction(text.replace(",", ""))
    fraction = _PLAIN_FRACTION.fullmatch(text)
    if fraction is None:
        return None
    sign, *parts = fraction.groups()
    top, bottom = (int(part) for part in parts if part is not None)
    if bottom == 0:
        return None
    return Fraction(-top if sign else top, bottom)


def _checked(value: Fraction, max_bits: int) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > max_bits:
        raise Undecided
    return value


def _power(base: Fraction, exponent: Fraction, max_bits: int) -> Fraction:
    if exponent.denominator != 1:
        root = _root(base, exponent.denominator)
        return _power(root, Fraction(exponent.numerator), max_bits)
    power = exponent.numerator
    if base == 0 and power <= 0:
        raise Undefined
    if base in (0, 1):
        return base
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if abs(power) * bits > max_bits and base != -1:
        raise Undecided
    return Fraction(-1 if power % 2 else 1) if base == -1 else base**power


def _integer_root(value: int, degree: int) -> int:
    """The exact root of a non-negative integer.

    Raises:
        Undecided: It is irrational.
    """
    if degree == 2:
        root = math.isqrt(value)
    else:
        low, high = 0, 1 << (value.bit_length() // degree + 1)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if middle**degree <= value else (low, middle - 1)
        root = low
    if root**degree != value:
        raise Undecided
    return root


def _root(value: Fraction, degree: int) -> Fraction:
    if degree > _MAX_ROOT or value < 0:
        raise Undecided
    return Fraction(
        _integer_root(value.numerator, degree), _integer_root(value.denominator, degree)
    )


def _whole(value: Fraction, limit: int) -> int:
    if value.denominator != 1 or not 0 <= value <= limit:
        raise Undecided
    return int(value)


def _logarithm(value: Fraction, base: Fraction) -> Fraction:
    """An integer logarithm, by counting."""
    if value <= 0 or base <= 0 or base == 1:
        raise Undecided
    if value == 1:
        return Fraction(0)
    for power in range(1, 65):
        if base**power == value:
            return Fraction(power)
        if base**-power == value:
            return Fraction(-power)
    raise Undecided


def _binary(name: str, left: Fraction, right: Fraction, max_bits: int) -> Fraction:
    match name:
        case "add":
            return left + right
        case "mul":
            return left * right
        case "div":
            if right == 0:
                raise Undefined
            return left / right
        case "pow":
            return _power(left, right, max_bits)
        case "root":
            if right.denominator != 1 or right < 1:
                raise Undecided
            if left < 0 and right % 2 == 1:
                return -_root(-left, int(right))
            return _root(left, int(right))
        case "log":
            return _logarithm(left, right)
        case "binom":
            return Fraction(math.comb(_whole(left, _MAX_BINOMIAL), _whole(right, _MAX_BINOMIAL)))
    raise Undecided


def _unary(name: str, value: Fraction) -> Fraction:
    match name:
        case "neg":
            return -value
        case "abs":
            return abs(value)
        case "floor":
            return Fraction(math.floor(value))
        case "ceil":
            return Fraction(math.ceil(value))
        case "factorial":
            return Fraction(math.factorial(_whole(value, _MAX_FACTORIAL)))
    raise Undecided


def to_fraction(node: Node, max_bits: int = MAX_BITS) -> Fraction:
    """The exact value of an expression, no part of it above ``max_bits`` bits.

    Raises:
        Undecided: It is not rational, not constant, too large, or not obviously any of these.
        Undefined: It has no value.
    """
    if isinstance(node, Number):
        return node.value
    if isinstance(node, Symbol | Constant):
        raise Undecided
    values = [to_fraction(arg, max_bits) for arg in node.args]
    if len(values) == 2:
        return _checked(_binary(node.name, values[0], values[1], max_bits), max_bits)
    return _checked(_unary(node.name, values[0]), max_bits)


def fold(node: Node) -> Node:
    """The expression with every part that has an exact small value replaced by it."""
    if not isinstance(node, Operation):
        return node
    args = tuple(fold(arg) for arg in node.args)
    folded = Operation(node.name, args)
    if not all(isinstance(arg, Number) for arg in args):
        return folded
    try:
        return Number(to_fraction(folded))
    except (Undecided, Undefined):
        return folded


class ExactDecider:
    """Settles equality where both sides are rational, infinite or written alike."""

    def equal(self, left: Node, right: Node) -> bool:
        """Whether two expressions have the same value.

        Raises:
            Undecided: Exact arithmetic cannot tell.
        """
        if isinstance(left, Number) and isinstance(right, Number):
            return left.value == right.value
        if infinite_sign(left) or infinite_sign(right):
            return infinite_sign(left) == infinite_sign(right)
        try:
            value = to_fraction(left)
        except Undefined:
            return False
        except Undecided:
            if left == right:
                return True
            raise
        try:
            return value == to_fraction(right)
        except Undefined:
            return False

    def near(self, node: Node, value: Fraction, tolerance: Fraction) -> bool:
        """Whether a constant expression differs from a number by no more than a tolerance.

        Raises:
            Undecided: The expression is not rational.
        """
        try:
            return abs(to_fraction(node) - value) <= tolerance
        except Undefined:
            return False

    def ratio_sign(self, left: Node, right: Node) -> int:
        """The sign of the constant that one expression is of the other, 0 if there is none.

        Raises:
            Undecided: Unless they are written alike.
        """
        if left == right:
            return 1
        raise Undecided

    def calculus(self, left: str, right: str) -> bool:
        """Equality of notation that needs a computer algebra system.

        Raises:
            Undecided: Unless they are written alike.
        """
        if left == right:
            return True
        raise Undecided
