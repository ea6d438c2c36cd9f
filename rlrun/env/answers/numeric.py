# SPDX-License-Identifier: Apache-2.0
"""Equality by high-precision arithmetic: constants to hundreds of digits, functions at many points.

Runs in the worker process only. Two expressions with variables are equal if they agree at every
sample point where both are real and finite (at complex values if there are too few such points).
Two values are equal if their difference keeps shrinking as the working precision grows; this has
no tolerance, so tiny numbers stay apart and cancellation to zero is seen.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction

import mpmath

from rlrun.env.answers import exact
from rlrun.env.answers.evaluate import NotReal, NoValue, Point, Value, evaluate
from rlrun.env.answers.nodes import Node, Operation, Undecided, infinite_sign, symbols

_DIGITS = (30, 60, 120, 240)
"""Working precisions, in decimal digits."""
_EXACT_BITS = 200_000
_SAMPLES = 12
_SCALES = (7, 1, 21, 70)
_ENOUGH = 4


def _vanishes(value: Callable[[], Value], precisions: tuple[int, ...]) -> bool:
    """Whether a value is zero: two precisions that agree on its size say that it is not.

    Raises:
        NoValue: It is undefined.
    """
    previous: Value = mpmath.mpf(0)
    for digits in precisions:
        with mpmath.workdps(digits):
            size = abs(value())
            if previous and size and mpmath.log10(size) - mpmath.log10(previous) > -1:
                return False
        previous = size
    return True


def _points(names: set[str]) -> list[Point]:
    """Fixed sample points of several scales: positive ones first, then of either sign."""
    draw = random.Random(20_250_101)
    points: list[Point] = []
    for index in range(_SAMPLES):
        point: Point = {}
        for name in sorted(names):
            value = Fraction(draw.randint(101, 997) * _SCALES[index % 4], 7 * 499)
            negative = draw.random() < 0.5 and index >= _SAMPLES // 2
            point[name] = -value if negative else value
        points.append(point)
    return points


def _real_values(nodes: tuple[Node, ...], point: Point) -> list[Value] | None:
    """The values at low precision, or None if a part of them is not real.

    Raises:
        NoValue: One of them is undefined.
    """
    with mpmath.workdps(_DIGITS[0]):
        try:
            return [evaluate(node, point, real=True) for node in nodes]
        except NotReal:
            return None


class NumericDecider:
    """Settles every question about expressions; what cannot be shown equal is not equal."""

    def equal(self, left: Node, right: Node) -> bool:
        """Whether two expressions have the same value wherever both are defined and real."""
        if infinite_sign(left) or infinite_sign(right):
            return infinite_sign(left) == infinite_sign(right)
        left, right = exact.fold(left), exact.fold(right)
        if left == right:
            return True
        try:
            return exact.to_fraction(left, _EXACT_BITS) == exact.to_fraction(right, _EXACT_BITS)
        except exact.Undefined:
            return False
        except Undecided:
            return self._agree(left, right, symbols(left) | symbols(right))

    @staticmethod
    def _agree(left: Node, right: Node, names: set[str]) -> bool:
        difference = Operation("add", (left, Operation("neg", (right,))))
        points = _points(names) if names else [{}]
        precisions = _DIGITS[:3] if names else _DIGITS
        enough = _ENOUGH if names else 1
        agreed = 0
        complex_points: list[Point] = []

        def zero_at(point: Point) -> bool:
            return _vanishes(lambda: evaluate(difference, point), precisions)

        for point in points:
            try:
                if _real_values((left, right), point) is None:
                    complex_points.append(point)
                elif zero_at(point):
                    agreed += 1
                else:
                    return False
            except NoValue:
                continue
        if agreed < enough:
            for point in complex_points:
                try:
                    if not zero_at(point):
                        return False
                    agreed += 1
                except NoValue:
                    continue
        return agreed >= enough

    def near(self, node: Node, value: Fraction, tolerance: Fraction) -> bool:
        """Whether a constant expression differs from a number by no more than a tolerance."""
        if symbols(node):
            return False
        try:
            with mpmath.workdps(_DIGITS[1]):
                known = mpmath.mpf(value.numerator) / value.denominator
                limit = mpmath.mpf(tolerance.numerator) / tolerance.denominator
                return bool(abs(evaluate(node, {}) - known) <= limit)
        except NoValue:
            return False

    def ratio_sign(self, left: Node, right: Node) -> int:
        """The sign of the constant that one expression is of the other, 0 if there is none."""
        left, right = exact.fold(left), exact.fold(right)
        if left == right:
            return 1
        names = symbols(left)
        if names != symbols(right):
            return 0
        if not names:
            return int(self.equal(left, right))
        reference: Point | None = None
        sign = agreed = 0
        for point in _points(names):
            try:
                values = _real_values((left, right), point)
                if values is None:
                    continue
                if reference is not None:
                    if not _proportional(left, right, reference, point):
                        return 0
                    agreed += 1
                elif all(values):
                    reference, sign = point, 1 if values[0] * values[1] > 0 else -1
                elif any(values):
                    return 0
            except NoValue:
                continue
        return sign if agreed >= _ENOUGH else 0

    @staticmethod
    def calculus(left: str, right: str) -> bool:
        """Equality of two cleaned texts by computer algebra."""
        if left == right:
            return True
        from rlrun.env.answers.algebra import same_by_algebra  # takes a second to import

        return same_by_algebra(left, right)


def _proportional(left: Node, right: Node, reference: Point, point: Point) -> bool:
    def cross_difference() -> Value:
        here = evaluate(left, point) * evaluate(right, reference)
        return here - evaluate(right, point) * evaluate(left, reference)

    return _vanishes(cross_difference, _DIGITS[:3])
