# SPDX-License-Identifier: Apache-2.0
"""Equations, inequalities and memberships: a name with a value, a region, or a plain relation."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction

from rlrun.env.answers import regions
from rlrun.env.answers.exact import Undefined, to_fraction
from rlrun.env.answers.lexer import Kind, Token, closing
from rlrun.env.answers.nodes import (
    Node,
    Number,
    Operation,
    Symbol,
    Undecided,
    Unreadable,
    choose_sign,
    symbols,
)
from rlrun.env.answers.parser import parse
from rlrun.env.answers.polynomials import negative_region
from rlrun.env.answers.shapes import Answer, Named, Piece, Region, Relation, Rounded, Scalar

EQUALITIES = frozenset({"=", "\\approx", "\\equiv"})
INEQUALITIES = frozenset({"<", ">", "\\le", "\\ge", "\\ne"})
RELATIONS = EQUALITIES | INEQUALITIES | {"\\in"}

_APPLIED = frozenset("fghpqrFGHPQREVTSANC")
"""Letters that read as a function before a bracket; other letters read as factors."""
_NAME_PREFIXES = frozenset({"\\angle", "\\triangle", "\\Delta", "\\overline", "\\vec", "m"})

Read = Callable[[list[Token]], Answer]


def read_relation(sides: list[list[Token]], signs: list[str], read: Read) -> Answer:
    """What a chain of sides and signs says.

    Args:
        sides: Token lists, one more than signs; the first may be empty ("= 5").
        signs: Members of RELATIONS.
        read: Reads one side as an answer of its own.

    Raises:
        Unreadable: The chain is none of the known forms.
    """
    if not sides[0] and len(signs) == 1 and signs[0] in EQUALITIES:
        return read(sides[1])
    if not all(sides):
        raise Unreadable("a relation without one of its sides")
    if signs[-1] == "\\approx" and (len(signs) > 1 or not _is_unknown(sides[0])):
        exact = read_relation(sides[:-1], signs[:-1], read) if len(signs) > 1 else read(sides[0])
        shown = read(sides[-1])
        if all(isinstance(answer, Scalar | Named) for answer in (exact, shown)):
            return Rounded(exact, shown)
    if all(sign in EQUALITIES for sign in signs):
        return _equation(sides, read)
    if signs == ["\\in"] and _is_name(sides[0]):
        return Named(_spelling(sides[0]), _expression(sides[0]), read(sides[1]), True)
    if signs == ["\\ne"]:
        return _unequal(sides)
    if all(sign in INEQUALITIES - {"\\ne"} for sign in signs):
        return _inequality(sides, signs)
    raise Unreadable("a chain of different relations")


def _spelling(tokens: list[Token]) -> str:
    return "".join(t.text for t in tokens if t.text not in ("{", "}"))


def _expression(tokens: list[Token]) -> Node | None:
    try:
        return parse(tokens)
    except Unreadable:
        return None


def _reduced(tokens: list[Token]) -> list[Token]:
    """The tokens without subscripts, primes and the arguments of function letters."""
    kept: list[Token] = []
    index = 0
    while index < len(tokens):
        token = tokens[index]
        if token.text == "'" and kept:
            index += 1
        elif token.text == "_" and kept and index + 1 < len(tokens):
            group = tokens[index + 1].text == "{"
            index = closing(tokens, index + 1) + 1 if group else index + 2
        elif token.text == "^" and kept and _takes_arguments(kept[-1]) and _inverse(tokens, index):
            index += 5
        elif token.text == "(" and kept and _takes_arguments(kept[-1]):
            index = closing(tokens, index) + 1
        else:
            kept.append(token)
            index += 1
    return kept


def _inverse(tokens: list[Token], index: int) -> bool:
    """Whether the exponent of an inverse function, before its argument, stands at an index."""
    return [t.text for t in tokens[index : index + 6]] == ["^", "{", "-", "1", "}", "("]


def _takes_arguments(token: Token) -> bool:
    return token.kind is Kind.RUN and token.text in _APPLIED


def _is_name(tokens: list[Token]) -> bool:
    """Whether a left side only names something: x, x_1, f(2), AB, the angle ABC, "Area"."""
    tokens = [t for t in _reduced(tokens) if t.text not in ("{", "}", "|")]
    while tokens and tokens[0].text in _NAME_PREFIXES and len(tokens) > 1:
        tokens = tokens[1:]
    if tokens and tokens[0].text == "(" and tokens[-1].text == ")":
        return all(t.text in ("(", ")", ",") or t.kind is Kind.RUN for t in tokens)
    if not tokens:
        return False
    if all(t.kind is Kind.WORD or (t.kind is Kind.RUN and len(t.text) > 3) for t in tokens):
        return True
    if len(tokens) != 1:
        return False
    token = tokens[0]
    if token.kind is Kind.RUN:
        return len(token.text) == 1 or token.text.isupper()
    return token.kind is Kind.COMMAND and token.text[1:].isalpha() and token.text != "\\infty"


def _is_unknown(tokens: list[Token]) -> bool:
    """Whether tokens name something whose value they do not say, as "x" does and "pi" does not."""
    node = _expression(tokens)
    return _is_name(tokens) and (node is None or bool(symbols(node)))


def _is_quantity(tokens: list[Token]) -> bool:
    """Whether a left side is built from names alone, such as m + n: no numeral, no power."""
    tokens = _reduced(tokens)
    kinds = (Kind.RUN, Kind.COMMAND, Kind.OPEN, Kind.CLOSE)
    return all(t.kind in kinds or t.text in ("+", "-", "/") for t in tokens)


def _equation(sides: list[list[Token]], read: Read) -> Answer:
    first, last = sides[0], sides[-1]
    if _is_name(first):
        return Named(_spelling(first), _expression(first), read(last), True)
    left, right = _expression(first), _expression(last)
    if left is not None and not symbols(left):
        if len(sides) == 2 and (_is_name(last) or (right and symbols(right))):
            return _equation([last, first], read)
        return _checked_value(left, right, read(last))
    if _is_quantity(first):
        return Named(_spelling(first), left, read(last), False)
    if len(sides) == 2 and _is_name(last):
        return Named(_spelling(last), right, read(first), True)
    if left is None or right is None:
        raise Unreadable("an equation with a side that is not an expression")
    return Relation("=", _minus(left, right))


def _checked_value(left: Node, right: Node | None, value: Answer) -> Answer:
    """A calculation with its result, "3 * 24 = 72": the result, if the calculation is right."""
    if right is None:
        raise Unreadable("a calculation without a result")
    try:
        if to_fraction(left) == to_fraction(right):
            return value
        return Relation("=", _minus(left, right))
    except Undefined:
        return Relation("=", _minus(left, right))
    except Undecided:
        return Named("", left, value, False)


def _minus(left: Node, right: Node) -> Node:
    return Operation("add", (left, Operation("neg", (right,))))


def _unequal(sides: list[list[Token]]) -> Answer:
    left, right = parse(sides[0]), parse(sides[1])
    for variable, value in ((left, right), (right, left)):
        if isinstance(variable, Symbol) and not symbols(value):
            values = {choose_sign(value, upper): None for upper in (True, False)}
            region = regions.without(regions.REALS, list(values))
            if region is not None:
                return Region(region.pieces, variable.name)
    return Relation("!=", _minus(left, right))


def _inequality(sides: list[list[Token]], signs: list[str]) -> Answer:
    nodes = [parse(side) for side in sides]
    if all(sign in (">", "\\ge") for sign in signs):
        nodes.reverse()
        signs = [{">": "<", "\\ge": "\\le"}[sign] for sign in reversed(signs)]
    if not all(sign in ("<", "\\le") for sign in signs):
        raise Unreadable("an inequality that turns around")
    closed = [sign == "\\le" for sign in signs]
    if len(nodes) == 3:
        return _between(nodes, closed)
    if len(nodes) != 2:
        raise Unreadable("a chain of inequalities around an expression")
    left, right = nodes
    if (around := _distance(left, right, closed[0])) is not None:
        return around
    if isinstance(left, Symbol) and not symbols(right):
        return Region((Piece(regions.MINUS_INFINITY, right, False, closed[0]),), left.name)
    if isinstance(right, Symbol) and not symbols(left):
        return Region((Piece(left, regions.INFINITY, closed[0], False),), right.name)
    difference = _minus(left, right)
    solved = negative_region(difference, closed[0])
    return Relation("<=" if closed[0] else "<", difference) if solved is None else solved


def _between(nodes: list[Node], closed: list[bool]) -> Answer:
    """The interval of low < x < high, also with a linear expression in the middle."""
    low, middle, high = nodes
    if symbols(low) or symbols(high):
        raise Unreadable("a chain of inequalities between expressions")
    if isinstance(middle, Symbol):
        return Region((Piece(low, high, closed[0], closed[1]),), middle.name)
    above = negative_region(_minus(low, middle), closed[0])
    below = negative_region(_minus(middle, high), closed[1])
    both = None if above is None or below is None else regions.intersection(above, below)
    if both is None:
        raise Unreadable("a chain of inequalities around an expression")
    return both


def _distance(left: Node, right: Node, closed: bool) -> Region | None:
    """The interval of |x - c| < r, or the two rays of r < |x - c|; None for anything else."""
    for distance, bound, inside in ((left, right, True), (right, left, False)):
        if not isinstance(distance, Operation) or distance.name != "abs" or symbols(bound):
            continue
        centre = _centre(distance.args[0])
        if centre is None:
            continue
        name, middle = centre
        low = Operation("add", (middle, Operation("neg", (bound,))))
        high = Operation("add", (middle, bound))
        try:
            if to_fraction(bound) < 0 or (to_fraction(bound) == 0 and closed is not inside):
                return None
            ends = Number(to_fraction(low)), Number(to_fraction(high))
        except (Undecided, Undefined):
            return None
        if inside:
            return Region((Piece(*ends, closed, closed),), name)
        rays = (
            Piece(regions.MINUS_INFINITY, ends[0], False, closed),
            Piece(ends[1], regions.INFINITY, closed, False),
        )
        return regions.normal(Region(rays, name))
    return None


def _centre(inside: Node) -> tuple[str, Node] | None:
    """Name and c of x, x + (-c) and x - c."""
    if isinstance(inside, Symbol):
        return inside.name, Number(Fraction(0))
    if isinstance(inside, Operation) and inside.name == "add":
        variable, offset = inside.args
        if isinstance(variable, Symbol) and not symbols(offset):
            return variable.name, Operation("neg", (offset,))
    return None


def as_relation(answer: Answer) -> Relation | None:
    """A named expression or a ray as an unsolved relation, if it can be seen as one."""
    if isinstance(answer, Relation):
        return answer
    if isinstance(answer, Named) and answer.node is not None and isinstance(answer.value, Scalar):
        return Relation("=", _minus(answer.node, answer.value.node))
    if isinstance(answer, Region) and len(answer.pieces) == 1 and answer.variable:
        piece, variable = answer.pieces[0], Symbol(answer.variable)
        if piece.low == regions.MINUS_INFINITY and piece.high != regions.INFINITY:
            return Relation("<=" if piece.high_closed else "<", _minus(variable, piece.high))
        if piece.high == regions.INFINITY and piece.low != regions.MINUS_INFINITY:
            return Relation("<=" if piece.low_closed else "<", _minus(piece.low, variable))
    return None
