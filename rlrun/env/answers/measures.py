# SPDX-License-Identifier: Apache-2.0
"""Quantities whose units need a second look: several units, and letters that may be units."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

from rlrun.env.answers.lexer import Kind, Token
from rlrun.env.answers.nodes import Node, Number, Operation, Unreadable, symbols
from rlrun.env.answers.parser import parse
from rlrun.env.answers.shapes import Scalar
from rlrun.env.answers.units import Unit, is_wordy, known, split_unit


def compound(tokens: list[Token]) -> Scalar | None:
    """A quantity in several units of one kind, such as "1 hour 30 minutes", in the base unit."""
    tokens = [
        replace(t, upright=True) if t.kind is Kind.RUN and known(t.text) else t for t in tokens
    ]
    starts = [
        index
        for index, token in enumerate(tokens)
        if token.kind is Kind.NUMBER and (index == 0 or is_wordy(tokens[index - 1]))
    ]
    if len(starts) < 2 or starts[0] != 0:
        return None
    total, dimensions = None, set()
    smallest: Fraction | None = None
    for start, end in zip(starts, [*starts[1:], len(tokens)], strict=True):
        body, unit, _ = split_unit(tokens[start:end])
        if unit is None or (smallest is not None and unit.factor >= smallest):
            return None
        smallest = unit.factor
        part = Operation("mul", (parse(body), Number(unit.factor)))
        total = part if total is None else Operation("add", (total, part))
        dimensions.add(unit.dimensions)
    if total is None or len(dimensions) > 1:
        return None
    return Scalar(total, Unit(dimensions.pop(), Fraction(1)))


def single_letter_unit(tokens: list[Token]) -> tuple[Node, Unit] | None:
    """The reading of "5 m" and "10 m/s" with the letters as units."""
    if len(tokens) < 2 or not any(t.kind is Kind.RUN and known(t.text) for t in tokens):
        return None
    upright = [
        replace(t, upright=True) if t.kind is Kind.RUN and len(t.text) == 1 else t for t in tokens
    ]
    body, unit, _ = split_unit(upright)
    if unit is None:
        return None
    try:
        node = parse(body)
    except Unreadable:
        return None
    return None if symbols(node) else (node, unit)
