# SPDX-License-Identifier: Apache-2.0
"""Equality by sympy of notation that the own parser does not read: sums, integrals, limits.

Runs in the worker process only, under its time and memory limits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import sympy
from latex2sympy2_extended import latex2sympy

from rlrun.env.answers.lexer import lex
from rlrun.env.answers.nodes import Constant, Node, Number, Symbol, Unreadable
from rlrun.env.answers.parser import parse

_DIGITS = 40
_SHORT_PART = r"\s*(?:\{([^{}]*)\}|([0-9A-Za-z]|\\[a-z]+))"
_SHORT_FRACTION = re.compile(rf"\\frac{_SHORT_PART}{_SHORT_PART}")
_CONSTANTS = {"pi": sympy.pi, "e": sympy.E, "i": sympy.I, "oo": sympy.oo}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "add": sympy.Add,
    "mul": sympy.Mul,
    "pow": sympy.Pow,
    "root": lambda value, index: sympy.real_root(value, index),
    "log": sympy.log,
    "div": lambda top, bottom: top / bottom,
    "neg": lambda value: -value,
    "binom": sympy.binomial,
    "abs": sympy.Abs,
    "floor": sympy.floor,
    "ceil": sympy.ceiling,
    "factorial": sympy.factorial,
    "sqrt": sympy.sqrt,
    **{
        name: getattr(sympy, name) for name in "sin cos tan cot sec csc sinh cosh tanh coth".split()
    },
    **{f"arc{name}": getattr(sympy, f"a{name}") for name in "sin cos tan cot sec csc".split()},
}


class GoldUnreadable(Exception):  # reported in the protocol, not a crash
    """The reference answer cannot be parsed, so nothing can be said about any answer to it."""


def _converted(node: Node) -> Any:
    if isinstance(node, Number):
        return sympy.Rational(node.value.numerator, node.value.denominator)
    if isinstance(node, Symbol):
        return sympy.Symbol(node.name.lstrip("\\"))
    if isinstance(node, Constant):
        return _CONSTANTS[node.name]
    if node.name not in _FUNCTIONS:
        raise Unreadable(node.name)
    return _FUNCTIONS[node.name](*(_converted(arg) for arg in node.args))


def _braced(fraction: re.Match[str]) -> str:
    r"""``\frac1n`` with the braces without which sympy's parser reads something else."""
    top, short_top, bottom, short_bottom = fraction.groups()
    return f"\\frac{{{top or short_top}}}{{{bottom or short_bottom}}}"


def _parsed(latex: str) -> Any:
    """The value of a LaTeX expression, or None if neither parser takes it."""
    try:
        return _converted(parse(lex(latex)))
    except Unreadable:
        pass  # The other parser may take it.
    try:
        parsed = latex2sympy(_SHORT_FRACTION.sub(_braced, latex))
        return parsed.doit() if isinstance(parsed, sympy.Basic | sympy.MatrixBase) else None
    except MemoryError:
        raise
    except Exception:  # noqa: BLE001 - parser and sympy raise errors of many libraries
        return None


def _vanishes(difference: Any) -> bool:
    if isinstance(difference, sympy.MatrixBase):
        return all(_vanishes(entry) for entry in difference)
    if difference.is_zero is not None:
        return bool(difference.is_zero)
    if not difference.free_symbols:
        value = sympy.N(difference, _DIGITS, chop=True)
        return bool(value.is_number and abs(value) < sympy.Float(10) ** (-_DIGITS // 2))
    return bool(sympy.simplify(difference) == 0)


def same_by_algebra(gold: str, answer: str) -> bool:
    """Whether the difference of two expressions is zero.

    Raises:
        GoldUnreadable: The reference is not an expression that sympy reads.
    """
    left = _parsed(gold)
    if left is None:
        raise GoldUnreadable(gold)
    right = _parsed(answer)
    if right is None or isinstance(left, sympy.MatrixBase) != isinstance(right, sympy.MatrixBase):
        return False
    if isinstance(left, sympy.MatrixBase) and left.shape != right.shape:
        return False
    try:
        return _vanishes(left - right)
    except TypeError:
        return False  # a relation or a set against an expression
