# SPDX-License-Identifier: Apache-2.0
"""Sets of real numbers as unions of intervals; exact where all ends are rational or infinite."""

from __future__ import annotations

from fractions import Fraction

from rlrun.env.answers.exact import Undefined, to_fraction
from rlrun.env.answers.nodes import Constant, Node, Number, Operation, Undecided, infinite_sign
from rlrun.env.answers.shapes import Piece, Region

INFINITY = Constant("oo")
MINUS_INFINITY = Operation("neg", (INFINITY,))
REALS = Region((Piece(MINUS_INFINITY, INFINITY, False, False),))
POSITIVE = Region((Piece(Number(Fraction(0)), INFINITY, False, False),))

_End = tuple[int, Fraction]
"""(-1, 0) and (1, 0) are the infinities, (0, value) is a number."""
_Span = tuple[_End, bool, _End, bool]
"""Low end, whether it is closed, high end, whether it is closed."""


def _end(node: Node) -> _End:
    sign = infinite_sign(node)
    return (sign, Fraction(0)) if sign else (0, to_fraction(node))


def _node(end: _End) -> Node:
    if end[0]:
        return INFINITY if end[0] > 0 else MINUS_INFINITY
    return Number(end[1])


def _spans(region: Region) -> list[_Span] | None:
    """The pieces with exact ends, or None if an end is not rational."""
    try:
        return [(_end(p.low), p.low_closed, _end(p.high), p.high_closed) for p in region.pieces]
    except (Undecided, Undefined):
        return None


def _region(spans: list[_Span], variable: str) -> Region:
    pieces = (Piece(_node(low), _node(high), lc, hc) for low, lc, high, hc in spans)
    return Region(tuple(pieces), variable)


def _merged(spans: list[_Span]) -> list[_Span]:
    """Sorted, without empty spans, with touching spans joined."""
    kept: list[_Span] = []
    for span in sorted((s for s in spans if _filled(s)), key=lambda s: (s[0], not s[1])):
        if not kept:
            kept.append(span)
            continue
        low, low_closed, high, high_closed = kept[-1]
        touches = span[0] < high or (span[0] == high and (span[1] or high_closed))
        if touches:
            further = max((high, high_closed), (span[2], span[3]))
            kept[-1] = (low, low_closed, *further)
        else:
            kept.append(span)
    return kept


def _filled(span: _Span) -> bool:
    low, low_closed, high, high_closed = span
    return low < high or (low == high and low_closed and high_closed)


def normal(region: Region) -> Region:
    """The same set with sorted, joined pieces, if its ends are rational."""
    spans = _spans(region)
    return region if spans is None else _region(_merged(spans), region.variable)


def union(first: Region, second: Region) -> Region:
    """All numbers of either region."""
    variable = first.variable or second.variable
    return normal(Region(first.pieces + second.pieces, variable))


def intersection(first: Region, second: Region) -> Region | None:
    """The numbers of both regions; None if an end is not rational."""
    left, right = _spans(first), _spans(second)
    if left is None or right is None:
        return None
    both: list[_Span] = []
    for a_low, a_low_closed, a_high, a_high_closed in left:
        for b_low, b_low_closed, b_high, b_high_closed in right:
            low, low_open = max((a_low, not a_low_closed), (b_low, not b_low_closed))
            high, high_closed = min((a_high, a_high_closed), (b_high, b_high_closed))
            both.append((low, not low_open, high, high_closed))
    return _region(_merged(both), first.variable or second.variable)


def opposite(first: Region, second: Region) -> Region | None:
    """What "x > a and x < b" means for ends that cannot be ordered here; None for other regions."""
    if len(first.pieces) != 1 or len(second.pieces) != 1:
        return None
    for low, high in ((first.pieces[0], second.pieces[0]), (second.pieces[0], first.pieces[0])):
        if low.high == INFINITY and high.low == MINUS_INFINITY:
            piece = Piece(low.low, high.high, low.low_closed, high.high_closed)
            return Region((piece,), first.variable or second.variable)
    return None


def complement(region: Region) -> Region | None:
    """All other real numbers; None if an end is not rational."""
    spans = _spans(region)
    if spans is None:
        return None
    outside: list[_Span] = []
    low, low_closed = _end(MINUS_INFINITY), False
    for start, start_closed, end, end_closed in _merged(spans):
        outside.append((low, low_closed, start, not start_closed))
        low, low_closed = end, not end_closed
    outside.append((low, low_closed, _end(INFINITY), False))
    return _region(_merged(outside), region.variable)


def without(region: Region, points: list[Node]) -> Region | None:
    """The region less some points; None if it cannot be formed exactly."""
    for point in points:
        hole = Region(
            (Piece(MINUS_INFINITY, point, False, False), Piece(point, INFINITY, False, False))
        )
        if region.pieces == REALS.pieces:
            region = Region(hole.pieces, region.variable)
            continue
        cut = intersection(region, hole)
        if cut is None:
            return None
        region = cut
    return region


def point(node: Node) -> Piece:
    """The interval that holds one number."""
    return Piece(node, node, True, True)
