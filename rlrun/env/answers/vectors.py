# SPDX-License-Identifier: Apache-2.0
"""Sums of unit vectors, "2i - 3j", as the components that a tuple or a column would list."""

from __future__ import annotations

from rlrun.env.answers.nodes import Constant, Node, Operation, Symbol, any_node, number
from rlrun.env.answers.shapes import Answer, Listing, Matrix, Order, Scalar

_PLACES: dict[Node, int] = {
    Constant("i"): 0,
    Symbol("j"): 1,
    Symbol("k"): 2,
    **{Symbol(f"hat({letter})"): place for place, letter in enumerate("ijk")},
}
_ZERO = number(0)

_Parts = dict[int, Node]
"""Factors of the unit vectors, at -1 what is no vector."""


def components(answer: Answer) -> tuple[Node, ...] | None:
    """The three components of a vector; None for anything else.

    A listing in parentheses, square or angle brackets and a matrix with one row or column are
    vectors if they have two or three entries. The letter i alone is a number, not a vector.
    """
    if isinstance(answer, Scalar):
        return _summed(answer.node)
    entries: tuple[Answer, ...] = ()
    if isinstance(answer, Listing) and answer.order is Order.TUPLE:
        entries = answer.items if answer.brackets in ("()", "[]", "<>") else ()
    elif isinstance(answer, Matrix) and 1 in (len(answer.rows), len(answer.rows[0])):
        entries = tuple(cell for row in answer.rows for cell in row)
    nodes = tuple(cell.node for cell in entries if isinstance(cell, Scalar))
    if len(nodes) != len(entries) or not 2 <= len(nodes) <= 3:
        return None
    return (*nodes, _ZERO)[:3]


def _summed(node: Node) -> tuple[Node, ...] | None:
    if not any_node(node, lambda part: part in _PLACES and part != Constant("i")):
        return None
    parts = _parts(node)
    if parts is None or -1 in parts:
        return None
    return tuple(parts.get(place, _ZERO) for place in range(3))


def _parts(node: Node) -> _Parts | None:
    """The linear form that a node is, or None if it is none."""
    if node in _PLACES:
        return {_PLACES[node]: number(1)}
    if not any_node(node, lambda part: part in _PLACES):
        return {-1: node}
    if not isinstance(node, Operation):
        return None
    sides = [_parts(arg) for arg in node.args]
    known = [side for side in sides if side is not None]
    if len(known) < len(sides):
        return None
    if node.name == "neg":
        return {place: Operation("neg", (factor,)) for place, factor in known[0].items()}
    if node.name == "add":
        total = dict(known[0])
        for place, factor in known[1].items():
            total[place] = Operation("add", (total[place], factor)) if place in total else factor
        return total
    if node.name == "div" and set(known[1]) == {-1}:
        return {p: Operation("div", (factor, known[1][-1])) for p, factor in known[0].items()}
    if node.name == "mul" and {-1} in (set(known[0]), set(known[1])):
        scale, vector = known if set(known[0]) == {-1} else known[::-1]
        return {p: Operation("mul", (scale[-1], factor)) for p, factor in vector.items()}
    return None
