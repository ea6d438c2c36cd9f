# SPDX-License-Identifier: Apache-2.0
"""Where a polynomial in one variable is negative: exact, for what factors into small parts."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

from rlrun.env.answers.exact import Undefined, to_fraction
from rlrun.env.answers.nodes import Node, Number, Operation, Symbol, Undecided, symbols
from rlrun.env.answers.regions import INFINITY, MINUS_INFINITY
from rlrun.env.answers.shapes import Piece, Region

_MAX_DEGREE = 12
_MAX_BITS = 300
_MAX_COEFFICIENT = 10**9
_MAX_FACTORED = 1000
"""Largest outer coefficients whose divisors are tried as roots of a cubic and beyond."""
_DIGITS = 10**40

_Polynomial = list[Fraction]
"""Coefficients, the constant first."""


def coefficients(node: Node, name: str) -> _Polynomial | None:
    """The rational coefficients of a polynomial in one variable, or None if it is none."""
    if not symbols(node):
        try:
            constant = [to_fraction(node)]
            return constant if _is_small(constant) else None
        except (Undecided, Undefined):
            return None
    if isinstance(node, Symbol):
        return [Fraction(0), Fraction(1)] if node.name == name else None
    if not isinstance(node, Operation):
        return None
    parts = [coefficients(arg, name) for arg in node.args]
    known = [part for part in parts if part is not None]
    result = None if len(known) < len(parts) else _combined(node.name, known)
    return result if result is None or _is_small(result) else None


def _is_small(polynomial: _Polynomial) -> bool:
    return all(
        max(value.numerator.bit_length(), value.denominator.bit_length()) <= _MAX_BITS
        for value in polynomial
    )


def _combined(operation: str, parts: list[_Polynomial]) -> _Polynomial | None:
    first, last = parts[0], parts[-1]
    match operation:
        case "neg":
            return [-value for value in first]
        case "add":
            short, long = sorted((first, last), key=len)
            return [v + (short[i] if i < len(short) else 0) for i, v in enumerate(long)]
        case "mul":
            return _product(first, last)
        case "div" if len(last) == 1 and last[0]:
            return [value / last[0] for value in first]
        case "pow" if len(last) == 1 and last[0].denominator == 1 and 0 < last[0] <= _MAX_DEGREE:
            result: _Polynomial | None = first
            for _ in range(int(last[0]) - 1):
                result = result and _product(result, first)
            return result
    return None


def _product(first: _Polynomial, second: _Polynomial) -> _Polynomial | None:
    if len(first) + len(second) - 2 > _MAX_DEGREE:
        return None
    result = [Fraction(0)] * (len(first) + len(second) - 1)
    for i, left in enumerate(first):
        for j, right in enumerate(second):
            result[i + j] += left * right
    return result


def negative_region(difference: Node, closed: bool) -> Region | None:
    """The solutions of difference < 0, or of difference <= 0 if closed.

    Returns:
        None unless the difference is a polynomial in one variable whose roots are rational, but for
        those of one quadratic factor.
    """
    names = symbols(difference)
    if len(names) != 1:
        return None
    (name,) = names
    polynomial = coefficients(difference, name)
    if polynomial is None or (roots := _real_roots(polynomial)) is None:
        return None
    places = [place for place, _ in roots]
    ends = [MINUS_INFINITY, *(node for _, node in roots), INFINITY]
    pieces: list[Piece] = []
    for index, sample in enumerate(_between(places)):
        low, high = ends[index : index + 2]
        joined = bool(pieces) and pieces[-1].high is low
        if index and closed:
            start = pieces.pop() if joined else Piece(low, low, True, True)
            pieces.append(Piece(start.low, low, start.low_closed, True))
            joined = True
        value = _value(polynomial, sample)
        if value < 0 or (value == 0 and closed):
            start = pieces.pop() if joined and closed else Piece(low, low, False, False)
            pieces.append(Piece(start.low, high, start.low_closed, False))
    return Region(tuple(pieces), name)


def _between(places: list[Fraction]) -> list[Fraction]:
    """A number before, between and after the roots."""
    if not places:
        return [Fraction(0)]
    middles = [(low + high) / 2 for low, high in pairwise(places)]
    return [places[0] - 1, *middles, places[-1] + 1]


def _value(polynomial: _Polynomial, place: Fraction) -> Fraction:
    value = Fraction(0)
    for coefficient in reversed(polynomial):
        value = value * place + coefficient
    return value


def _real_roots(polynomial: _Polynomial) -> list[tuple[Fraction, Node]] | None:
    """The distinct real roots in order, each with a rational number near it; None if not found."""
    scale = math.lcm(*(value.denominator for value in polynomial))
    rest = [int(value * scale) for value in polynomial]
    while rest and rest[-1] == 0:
        rest.pop()
    if max((abs(value) for value in rest), default=0) > _MAX_COEFFICIENT:
        return None
    rational: set[Fraction] = set()
    while len(rest) > 3 or (rest and rest[0] == 0):
        root = _rational_root(rest)
        if root is None:
            return None
        rational.add(root)
        rest = _divided(rest, root)
    if len(rest) == 2:
        rational.add(Fraction(-rest[0], rest[1]))
    found: list[tuple[Fraction, Node]] = [(root, Number(root)) for root in rational]
    if len(rest) == 3:
        found += [(place, node) for place, node in _quadratic(rest) if place not in rational]
    return sorted(found, key=lambda root: root[0])


def _rational_root(polynomial: list[int]) -> Fraction | None:
    if polynomial[0] == 0:
        return Fraction(0)
    if max(abs(polynomial[0]), abs(polynomial[-1])) > _MAX_FACTORED:
        return None
    exact = [Fraction(value) for value in polynomial]
    for bottom in _divisors(polynomial[-1]):
        for top in _divisors(polynomial[0]):
            for root in (Fraction(top, bottom), Fraction(-top, bottom)):
                if _value(exact, root) == 0:
                    return root
    return None


def _divisors(value: int) -> list[int]:
    return [divisor for divisor in range(1, abs(value) + 1) if value % divisor == 0]


def _divided(polynomial: list[int], root: Fraction) -> list[int]:
    """The polynomial without one of its rational roots."""
    quotient: list[int] = []
    carried = Fraction(0)
    # By the lemma of Gauss the quotient by (bottom * x - top) has whole coefficients.
    for coefficient in reversed(polynomial[1:]):
        carried = coefficient + carried * root
        quotient.append(int(carried / root.denominator))
    return quotient[::-1]


def _quadratic(polynomial: list[int]) -> list[tuple[Fraction, Node]]:
    """The real roots of a quadratic polynomial."""
    constant, linear, leading = polynomial
    square = linear * linear - 4 * leading * constant
    if square < 0:
        return []
    near = Fraction(math.isqrt(square * _DIGITS**2), _DIGITS)
    found: list[tuple[Fraction, Node]] = []
    for sign in (-1, 1) if square else (1,):
        place = (-linear + sign * near) / (2 * leading)
        if near * near == square:
            found.append((place, Number(place)))
            continue
        root = Operation("pow", (Number(Fraction(square)), Number(Fraction(1, 2))))
        top = Operation(
            "add", (Number(Fraction(-linear)), root if sign > 0 else Operation("neg", (root,)))
        )
        found.append((place, Operation("div", (top, Number(Fraction(2 * leading))))))
    return found
