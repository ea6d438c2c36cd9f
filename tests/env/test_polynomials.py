# SPDX-License-Identifier: Apache-2.0
"""The region where a polynomial is negative holds exactly the numbers where it is."""

from fractions import Fraction

from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.env.answers.evaluate import evaluate
from rlrun.env.answers.lexer import lex
from rlrun.env.answers.nodes import infinite_sign
from rlrun.env.answers.parser import parse
from rlrun.env.answers.polynomials import negative_region

factors = st.lists(st.tuples(st.integers(1, 3), st.integers(-4, 4)), min_size=1, max_size=4)
quadratics = st.tuples(st.integers(-2, 2).filter(bool), st.integers(-4, 4), st.integers(-4, 4))


def holds(region, place):
    """Whether a number lies in a region, its ends taken as decimals."""
    for piece in region.pieces:
        low, high = (
            infinite_sign(end) * 1e9 if infinite_sign(end) else float(evaluate(end, {}))
            for end in (piece.low, piece.high)
        )
        if low < place < high or (place == low and piece.low_closed):
            return True
        if place == high and piece.high_closed:
            return True
    return False


@settings(max_examples=60, deadline=None)
@given(factors, quadratics, st.booleans())
def test_the_region_is_where_the_polynomial_is_negative(factors, quadratic, closed):
    a, b, c = quadratic
    text = "".join(f"({scale}x + ({shift}))" for scale, shift in factors)
    text += f"(({a})x^2 + ({b})x + ({c}))"
    region = negative_region(parse(lex(text)), closed)
    assert region is not None
    places = {Fraction(n, 4) for n in range(-24, 25)}
    places |= {Fraction(-shift, scale) for scale, shift in factors}
    for place in places:
        value = a * place**2 + b * place + c
        for scale, shift in factors:
            value *= scale * place + shift
        if place.denominator in (1, 2, 4):  # which are exact as decimals
            assert holds(region, float(place)) == (value < 0 or (closed and value == 0)), text


def test_what_is_no_small_polynomial_in_one_variable_is_left_alone():
    for text in ("x + y", "\\sin x", "2^x", "x^{13}", "x^3 - 2", "(10^{99})x - 1", "5"):
        assert negative_region(parse(lex(text)), False) is None, text
