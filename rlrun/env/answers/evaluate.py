# SPDX-License-Identifier: Apache-2.0
"""The value of an expression at a point, in mpmath arithmetic of the present working precision.

Runs in the worker process only. Numbers too large for the precision (towers of powers) are never
evaluated: each stands for an unknown of its own.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import mpmath

from rlrun.env.answers.nodes import Constant, Node, Number, Operation, Symbol

_MAX_MAGNITUDE_BITS = 700
"""Values beyond 2^this are left as unknowns; below it, 240 digits resolve a difference of 1."""
_MAX_EXPONENT_BITS = 1_000_000
_LARGE_ARGUMENT = 10_000

Value = Any
"""mpmath.mpf or mpmath.mpc; the library has no types."""
Point = dict[str, Fraction]

_FUNCTIONS: dict[str, Callable[[Value], Value]] = {
    "sin": mpmath.sin,
    "cos": mpmath.cos,
    "tan": mpmath.tan,
    "cot": mpmath.cot,
    "sec": mpmath.sec,
    "csc": mpmath.csc,
    "arcsin": mpmath.asin,
    "arccos": mpmath.acos,
    "arctan": mpmath.atan,
    "arccot": mpmath.acot,
    "arcsec": mpmath.asec,
    "arccsc": mpmath.acsc,
    "sinh": mpmath.sinh,
    "cosh": mpmath.cosh,
    "tanh": mpmath.tanh,
    "coth": mpmath.coth,
    "sqrt": mpmath.sqrt,
    "abs": abs,
}


class NotReal(Exception):
    """The expression, or a part of it, is not a real number at this point."""


class NoValue(Exception):  # a value, not a fault
    """The expression is undefined or infinite at this point."""


def _key(node: Node) -> str:
    """A spelling of an expression that does not depend on the process (decimal would be slow)."""
    if isinstance(node, Number):
        return f"{node.value.numerator:x}/{node.value.denominator:x}"
    if isinstance(node, Operation):
        return f"{node.name}({','.join(_key(arg) for arg in node.args)})"
    return node.name


def _unknown(node: Node) -> Value:
    """A fixed number between 1 and 2 that stands for an expression too large to evaluate."""
    key = _key(node).encode()
    bits = random.Random(zlib.crc32(key) << 32 | zlib.adler32(key)).getrandbits(200)
    return 1 + mpmath.mpf(bits) / 2**200


def _is_whole(value: Value) -> bool:
    return not mpmath.im(value) and bool(mpmath.isint(value))


def _rational(node: Number) -> Value:
    value = node.value
    if value.numerator.bit_length() - value.denominator.bit_length() > _MAX_MAGNITUDE_BITS:
        return _unknown(node)
    return mpmath.mpf(value.numerator) / value.denominator


def evaluate(node: Node, point: Point, real: bool = False) -> Value:
    """The value of an expression at a point, at the present mpmath precision.

    Raises:
        NoValue: It is undefined or infinite there.
        NotReal: With ``real``, a part of it is not a real number there.
    """
    if isinstance(node, Number):
        return _rational(node)
    if isinstance(node, Symbol):
        chosen = point[node.name]
        return mpmath.mpf(chosen.numerator) / chosen.denominator
    if isinstance(node, Constant):
        if node.name == "oo":
            raise NoValue
        if node.name == "i" and real:
            raise NotReal
        return {"pi": +mpmath.pi, "e": +mpmath.e, "i": mpmath.mpc(0, 1)}[node.name]
    args = [evaluate(arg, point, real) for arg in node.args]
    try:
        result = _operation(node, args)
    except (ArithmeticError, ValueError, mpmath.libmp.NoConvergence) as problem:
        raise NoValue from problem
    if not mpmath.isfinite(result):
        raise NoValue
    if real and mpmath.im(result):
        raise NotReal
    size = abs(result)
    return _unknown(node) if size and mpmath.mag(size) > _MAX_MAGNITUDE_BITS else result


def _operation(node: Operation, args: list[Value]) -> Value:
    if len(args) == 2:
        return _binary(node, args[0], args[1])
    name, value = node.name, args[0]
    if name == "neg":
        return -value
    if name in ("floor", "ceil"):
        if mpmath.im(value):
            raise NoValue
        return mpmath.floor(value) if name == "floor" else mpmath.ceil(value)
    if name == "factorial":
        if abs(value) > _LARGE_ARGUMENT:
            return _unknown(node)
        return mpmath.gamma(value + 1)
    return _FUNCTIONS[name](value)


def _binary(node: Operation, left: Value, right: Value) -> Value:
    match node.name:
        case "add":
            return left + right
        case "mul":
            return left * right
        case "div":
            return left / right
        case "pow":
            return _power(node, left, right)
        case "root":
            if not mpmath.im(left) and left < 0 and _is_whole(right) and int(right) % 2:
                return -mpmath.root(-left, int(right))
            return _power(node, left, 1 / right)
        case "log":
            return mpmath.log(left) / mpmath.log(right)
    if max(abs(left), abs(right)) > _LARGE_ARGUMENT:
        return _unknown(node)
    return mpmath.binomial(left, right)


def _power(node: Node, base: Value, exponent: Value) -> Value:
    if base == 0:
        if mpmath.re(exponent) <= 0:
            raise NoValue
        return mpmath.mpf(0)
    growth = mpmath.re(mpmath.log(base) * exponent) / mpmath.log(2)
    if growth > _MAX_MAGNITUDE_BITS or abs(growth) > _MAX_EXPONENT_BITS:
        return _unknown(node)
    if _is_whole(exponent) and abs(exponent) < _MAX_EXPONENT_BITS:
        return base ** int(exponent)
    return mpmath.power(base, exponent)
