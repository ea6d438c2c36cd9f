# SPDX-License-Identifier: Apache-2.0
"""Whether an answer says the same as the reference: the rules by kind, independent of arithmetic.

Arithmetic is the decider's: ``exact.ExactDecider`` in the calling process, which raises
``Undecided`` when it cannot tell, and ``numeric.NumericDecider`` in the worker, which always tells.
"""

from __future__ import annotations

import re
from fractions import Fraction

from rlrun.env.answers.clean import clean
from rlrun.env.answers.dates import same_colons
from rlrun.env.answers.exact import Undefined, to_fraction
from rlrun.env.answers.nodes import Constant, Symbol, Undecided
from rlrun.env.answers.quantities import Decider, is_near, same_quantity
from rlrun.env.answers.reader import MAX_CHARACTERS, flattened, read, read_gold
from rlrun.env.answers.relations import as_relation
from rlrun.env.answers.shapes import (
    Answer,
    Calculus,
    Colons,
    Congruence,
    Listing,
    Matrix,
    Named,
    Numeral,
    Option,
    Order,
    Piece,
    Region,
    Relation,
    Rounded,
    Scalar,
    Text,
    Unparsed,
)
from rlrun.env.answers.statements import as_region
from rlrun.env.answers.vectors import components


def same_text(gold: str, answer: str, decider: Decider) -> bool:
    """Whether two answer texts say the same.

    Raises:
        Undecided: The decider cannot tell.
    """
    reference, given = read_gold(gold), read(answer)
    if reference is None or given is None:
        return False
    both_scalar = isinstance(reference, Scalar) and isinstance(given, Scalar)
    if not both_scalar and max(len(gold), len(answer)) <= MAX_CHARACTERS:
        # Whatever it means, it means the same.
        if flattened(clean(gold)) == flattened(clean(answer)):
            return True
    if isinstance(reference, Calculus) or isinstance(given, Calculus):
        if any(isinstance(a, Text | Unparsed | Option | Colons) for a in (reference, given)):
            return False
        return decider.calculus(clean(gold), clean(answer))
    return same(reference, given, decider)


def same(gold: Answer, answer: Answer, decider: Decider) -> bool:
    """Whether an answer says the same as the reference.

    Raises:
        Undecided: The decider cannot tell.
    """
    if isinstance(gold, Scalar) or isinstance(answer, Scalar):
        left, right = components(gold), components(answer)
        if left is not None and right is not None:
            return all(decider.equal(a, b) for a, b in zip(left, right, strict=True))
    if isinstance(gold, Scalar) and isinstance(answer, Scalar):
        return same_quantity(gold, answer, decider)
    if isinstance(gold, Rounded):
        return is_near(gold, decider) and any(
            same(value, answer, decider) for value in (gold.exact, gold.shown)
        )
    if isinstance(answer, Rounded):
        return is_near(answer, decider) and any(
            same(gold, value, decider) for value in (answer.exact, answer.shown)
        )
    if isinstance(gold, Congruence) or isinstance(answer, Congruence):
        return _same_congruence(gold, answer, decider)
    if isinstance(gold, Unparsed) or isinstance(answer, Unparsed):
        return gold == answer
    if isinstance(gold, Option) or isinstance(answer, Option):
        return _same_option(gold, answer, decider)
    if isinstance(gold, Named) or isinstance(answer, Named):
        return _same_named(gold, answer, decider)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relation(gold, answer, decider)
    if isinstance(gold, Text) or isinstance(answer, Text):
        return gold == answer != Text("")
    if isinstance(gold, Numeral) or isinstance(answer, Numeral):
        return _same_numeral(gold, answer)
    if isinstance(gold, Colons) or isinstance(answer, Colons):
        return same_colons(gold, answer, decider)
    if isinstance(gold, Matrix) or isinstance(answer, Matrix):
        return _same_matrix(gold, answer, decider)
    if isinstance(gold, Region) or isinstance(answer, Region):
        return _same_region(gold, answer, decider)
    return _same_listing(gold, answer, decider)


# --- options and words ----------------------------------------------------------------------------


def _letter(answer: Answer) -> str:
    if isinstance(answer, Option):
        return answer.letter
    if isinstance(answer, Scalar) and isinstance(answer.node, Symbol):
        return answer.node.name.upper()
    if isinstance(answer, Scalar) and answer.node == Constant("e"):
        return "E"
    return ""


def _same_option(gold: Answer, answer: Answer, decider: Decider) -> bool:
    nothing = Text("")
    if isinstance(gold, Option) and isinstance(answer, Option) and gold.letter == answer.letter:
        contents = (gold.content, answer.content)
        if all(isinstance(content, Scalar) for content in contents):
            return same(*contents, decider)
    if _letter(gold) and _letter(answer):
        return _letter(gold) == _letter(answer)
    if isinstance(gold, Option):
        return gold.content != nothing and same(gold.content, answer, decider)
    if isinstance(answer, Option):
        return answer.content != nothing and same(gold, answer.content, decider)
    return False


# --- names and relations --------------------------------------------------------------------------


_FUNCTIONS = re.compile(r"y (\w(?:\^-1)?\(x\))|(\w(?:\^-1)?\(x\)) y")
"""Two names of a function of x: y and f(x)."""


def _same_named(gold: Answer, answer: Answer, decider: Decider) -> bool:
    if isinstance(answer, Named) and not answer.name:
        if not isinstance(answer.value, Scalar) or answer.node is None:
            return False
        if not decider.equal(answer.node, answer.value.node):
            return False
        return same(gold, answer.value, decider)
    if isinstance(gold, Named) and isinstance(answer, Named):
        if gold.name == answer.name or _FUNCTIONS.fullmatch(f"{gold.name} {answer.name}"):
            return same(gold.value, answer.value, decider)
        return _same_relation(gold, answer, decider)
    if isinstance(gold, Relation) or isinstance(answer, Relation):
        return _same_relation(gold, answer, decider)
    if isinstance(gold, Named):
        return gold.strict and same(gold.value, answer, decider)
    if isinstance(answer, Named):
        # "C = D" chooses neither of two options.
        options = len(answer.name) == 1 and answer.name.isupper() and _letter(gold)
        return not options and same(gold, answer.value, decider)
    return False


def _same_relation(gold: Answer, answer: Answer, decider: Decider) -> bool:
    left, right = as_relation(gold), as_relation(answer)
    if left is None or right is None or left.sign != right.sign:
        return False
    ratio = decider.ratio_sign(left.difference, right.difference)
    return ratio > 0 if left.sign in ("<", "<=") else ratio != 0


# --- numerals, times, ratios, matrices, regions ---------------------------------------------------


def _same_numeral(gold: Answer, answer: Answer) -> bool:
    """By value; a base that only the reference states may be left out of the answer."""
    if isinstance(gold, Numeral) and isinstance(answer, Numeral):
        return gold.value == answer.value
    numeral, other = (gold, answer) if isinstance(gold, Numeral) else (answer, gold)
    if not isinstance(numeral, Numeral) or not isinstance(other, Scalar):
        return False
    try:
        value = to_fraction(other.node)
    except (Undecided, Undefined):
        return False
    if numeral is answer:
        return value == numeral.value
    return numeral.digits.isdigit() and value == int(numeral.digits)


def _same_congruence(gold: Answer, answer: Answer, decider: Decider) -> bool:
    """By value; up to multiples of the modulus where both state it."""
    if not isinstance(gold, Congruence):
        return isinstance(answer, Congruence) and same(gold, answer.value, decider)
    if not isinstance(answer, Congruence):
        return same(gold.value, answer, decider)
    if gold.modulus != answer.modulus:
        return False
    left, right = _residue(gold), _residue(answer)
    if left is not None and right is not None:
        return left == right
    return same(gold.value, answer.value, decider)


def _residue(congruence: Congruence) -> Fraction | None:
    """The least value that is meant, if it is a rational number."""
    value = congruence.value.value if isinstance(congruence.value, Named) else congruence.value
    if not isinstance(value, Scalar):
        return None
    try:
        return to_fraction(value.node) % congruence.modulus
    except (Undecided, Undefined):
        return None


def _same_matrix(gold: Answer, answer: Answer, decider: Decider) -> bool:
    if isinstance(gold, Matrix) and isinstance(answer, Matrix):
        if len(gold.rows) != len(answer.rows) or len(gold.rows[0]) != len(answer.rows[0]):
            return False
        return all(
            _pairwise(left, right, decider)
            for left, right in zip(gold.rows, answer.rows, strict=True)
        )
    matrix, vector = (gold, answer) if isinstance(gold, Matrix) else (answer, gold)
    if not isinstance(matrix, Matrix):
        return False
    other = answer if matrix is gold else gold
    if isinstance(other, Listing) and (rows := _rows(other)) is not None:
        return _same_matrix(*((matrix, rows) if matrix is gold else (rows, matrix)), decider)
    entries = tuple(cell for row in matrix.rows for cell in row)
    if len(entries) == 1:
        return same(*((entries[0], answer) if matrix is gold else (gold, entries[0])), decider)
    if not isinstance(vector, Listing) or vector.brackets not in (*_SQUARE, "<>"):
        return False
    if 1 not in (len(matrix.rows), len(matrix.rows[0])) or len(entries) != len(vector.items):
        return False
    left, right = (entries, vector.items) if matrix is gold else (vector.items, entries)
    return _pairwise(left, right, decider)


_SQUARE = ("[]", "()")


def _rows(listing: Listing) -> Matrix | None:
    """A matrix that is written as a list of rows."""
    rows = [
        item.items
        for item in listing.items
        if isinstance(item, Listing) and item.order is Order.TUPLE and item.brackets in _SQUARE
    ]
    if (
        listing.brackets not in _SQUARE
        or len(rows) < len(listing.items)
        or len(set(map(len, rows))) != 1
    ):
        return None
    return Matrix(tuple(rows))


def _pairwise(gold: tuple[Answer, ...], answer: tuple[Answer, ...], decider: Decider) -> bool:
    if len(gold) != len(answer):
        return False
    return all(same(left, right, decider) for left, right in zip(gold, answer, strict=True))


def _same_region(gold: Answer, answer: Answer, decider: Decider) -> bool:
    left, right = as_region(gold), as_region(answer)
    if left is None or right is None or len(left.pieces) != len(right.pieces):
        return False
    if left.variable and right.variable and left.variable != right.variable:
        return False

    def same_piece(a: Piece, b: Piece) -> bool:
        if (a.low_closed, a.high_closed) != (b.low_closed, b.high_closed):
            return False
        return decider.equal(a.low, b.low) and decider.equal(a.high, b.high)

    unmatched = list(right.pieces)
    for piece in left.pieces:
        partner = next((other for other in unmatched if same_piece(piece, other)), None)
        if partner is None:
            return False
        unmatched.remove(partner)
    return True


# --- listings -------------------------------------------------------------------------------------


def _same_listing(gold: Answer, answer: Answer, decider: Decider) -> bool:
    if not isinstance(gold, Listing) or not isinstance(answer, Listing):
        if isinstance(gold, Listing) and len(gold.items) == 1:
            return same(gold.items[0], answer, decider)
        if isinstance(answer, Listing) and len(answer.items) == 1:
            return same(gold, answer.items[0], decider)
        return False
    orders = (gold.order, answer.order)
    if set(orders) == {Order.TUPLE, Order.SET}:
        # A set of one point is the point; otherwise a set is no tuple.
        if gold.order is Order.SET:
            return len(gold.items) == 1 and same(gold.items[0], answer, decider)
        return len(answer.items) == 1 and same(gold, answer.items[0], decider)
    if Order.TUPLE in orders:
        if gold.alternatives or answer.alternatives or not _brackets_agree(gold, answer):
            return False
        return _pairwise(_in_order(gold), _in_order(answer), decider)
    if Order.SET in orders:
        return _covers(gold.items, answer.items, decider) and all(
            any(same(item, other, decider) for item in gold.items) for other in answer.items
        )
    if _tells_apart(gold) != _tells_apart(answer):
        if gold.alternatives or answer.alternatives:
            return False
        return _pairwise(_in_order(gold), _in_order(answer), decider)
    return _same_multiset(gold.items, answer.items, decider)


def _tells_apart(listing: Listing) -> bool:
    """Whether every item has a name, as in "x = 1, y = 2", that is more than a subscript."""
    names = [item.name.split("_")[0] for item in listing.items if isinstance(item, Named)]
    return len(names) == len(listing.items) and len(set(names)) > 1


def _brackets_agree(gold: Listing, answer: Listing) -> bool:
    """Brackets tell intervals apart; around more than two items they do not matter."""
    left, right = (b.replace("<>", "()") for b in (gold.brackets, answer.brackets))
    if left == right:
        return True
    if not left or not right:
        return (left or right) in ("()", "[]")
    return len(gold.items) != 2 and {left, right} == {"()", "[]"}


def _in_order(listing: Listing) -> tuple[Answer, ...]:
    """The items; of "y = 4, x = 3" the values in the order of the names."""
    named = [item for item in listing.items if isinstance(item, Named)]
    if len(named) < len(listing.items):
        return listing.items
    return tuple(item.value for item in sorted(named, key=lambda item: item.name))


def _covers(gold: tuple[Answer, ...], answer: tuple[Answer, ...], decider: Decider) -> bool:
    return all(any(same(item, other, decider) for other in answer) for item in gold)


def _same_multiset(gold: tuple[Answer, ...], answer: tuple[Answer, ...], decider: Decider) -> bool:
    if len(gold) != len(answer):
        return False
    if (things := _counted(gold)) and things == _counted(answer):
        by_thing = (sorted(items, key=lambda item: _counted((item,))) for items in (gold, answer))
        return all(same(left, right, decider) for left, right in zip(*by_thing, strict=True))
    unmatched = list(answer)
    for item in gold:
        partner = next((other for other in unmatched if same(item, other, decider)), None)
        if partner is None:
            return False
        unmatched.remove(partner)
    return True


def _counted(items: tuple[Answer, ...]) -> list[str]:
    """What each item counts, in order of the alphabet; nothing if two count the same."""
    things = {item.counted for item in items if isinstance(item, Scalar)}
    return sorted(things) if len(things) == len(items) else []
