# SPDX-License-Identifier: Apache-2.0
"""A calculator for untrusted text: exact, without ``eval``, bounded in size and time."""

from __future__ import annotations

import ast
from decimal import Context, Decimal
from fractions import Fraction

MAX_CHARACTERS = 200
_MAX_BITS = 4_000
_MAX_POWER = 1_000
_DIGITS = 12
_SPELLING = str.maketrans({"^": "**", "×": "*", "÷": "/", "−": "-", "·": "*"})


class ArithmeticProblem(ValueError):
    """An expression cannot be calculated; the text says why, for the policy to read."""


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1 or abs(exponent) > _MAX_POWER:
        raise ArithmeticProblem(f"exponents must be whole and at most {_MAX_POWER}")
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if bits * abs(exponent) > 2 * _MAX_BITS:
        raise ArithmeticProblem("the result is too large")
    return Fraction(base ** int(exponent))


def _binary(operator: ast.operator, left: Fraction, right: Fraction) -> Fraction:
    match operator:
        case ast.Add():
            return left + right
        case ast.Sub():
            return left - right
        case ast.Mult():
            return left * right
        case ast.Div():
            return left / right
        case ast.FloorDiv():
            return Fraction(left // right)
        case ast.Mod():
            return left % right
        case ast.Pow():
            return _power(left, right)
    raise ArithmeticProblem("only + - * / // % ** are known")


def _number(node: ast.Constant, text: str) -> Fraction:
    """The value of a literal as it is written; a float would round it."""
    if type(node.value) is int:
        return Fraction(node.value)
    literal = ast.get_source_segment(text, node) or ""
    power = literal.lower().partition("e")[2] or "0"
    if type(node.value) is not float or abs(int(power)) > _MAX_POWER:
        raise ArithmeticProblem("only numbers of moderate size are known")
    return Fraction(literal.replace("_", ""))


def _value(node: ast.expr, text: str) -> Fraction:
    match node:
        case ast.Constant():
            result = _number(node, text)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            result = -_value(operand, text)
        case ast.UnaryOp(op=ast.UAdd(), operand=operand):
            result = _value(operand, text)
        case ast.BinOp(left=left, op=operator, right=right):
            result = _binary(operator, _value(left, text), _value(right, text))
        case _:
            raise ArithmeticProblem("only numbers and + - * / // % ** are known")
    if max(result.numerator.bit_length(), result.denominator.bit_length()) > _MAX_BITS:
        raise ArithmeticProblem("the result is too large")
    return result


def calculate(expression: str) -> Fraction:
    """The exact value of an arithmetic expression with + - * / // % ** (or ^) and brackets.

    Raises:
        ArithmeticProblem: It is not such an expression, has no value, or is too large.
    """
    text = expression.strip().translate(_SPELLING)
    if not text or len(text) > MAX_CHARACTERS:
        raise ArithmeticProblem(f"an expression has 1 to {MAX_CHARACTERS} characters")
    try:
        return _value(ast.parse(text, mode="eval").body, text)
    except ZeroDivisionError as problem:
        raise ArithmeticProblem("division by zero") from problem
    except (SyntaxError, RecursionError, MemoryError, ValueError) as problem:
        if isinstance(problem, ArithmeticProblem):
            raise
        raise ArithmeticProblem("not an arithmetic expression") from problem


def show(value: Fraction) -> str:
    """A value as text: whole numbers in full, others as a decimal of up to 12 digits."""
    if value.denominator == 1:
        return str(value.numerator)
    decimal = Context(prec=_DIGITS).divide(Decimal(value.numerator), Decimal(value.denominator))
    text = format(decimal, "f") if -_DIGITS <= decimal.adjusted() <= 2 * _DIGITS else str(decimal)
    return text.rstrip("0").rstrip(".") if "." in text and "E" not in text else text
