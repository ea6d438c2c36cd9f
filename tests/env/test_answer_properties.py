# SPDX-License-Identifier: Apache-2.0
import math
import time
from fractions import Fraction

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from rlrun.env.answers.clean import clean
from rlrun.env.answers.compare import same_text
from rlrun.env.answers.exact import ExactDecider
from rlrun.env.answers.nodes import Undecided
from rlrun.env.answers.numeric import NumericDecider
from rlrun.env.answers.reader import read
from rlrun.env.answers.shapes import Colons, Numeral, Option, Text, Unparsed
from rlrun.env.verifier import Verifier


def digits(least, most):
    return st.text("0123456789", min_size=least, max_size=most)


rationals = st.fractions(min_value=-(10**6), max_value=10**6, max_denominator=400)


@st.composite
def notations(draw, value):
    """A way to write a rational number."""
    top, bottom = value.numerator, value.denominator
    factor = draw(st.integers(1, 12))
    sign = "-" if top < 0 else draw(st.sampled_from(["", "+"]))
    ways = [
        f"{top * factor}/{bottom * factor}",
        f"\\frac{{{top}}}{{{bottom}}}",
        f"{sign}\\dfrac{{{abs(top) * factor}}}{{{bottom * factor}}}",
        f"\\left({top}/{bottom}\\right)",
        f"$\\frac{{{-top}}}{{{-bottom}}}$",
        f"x = \\tfrac{{{top}}}{{{bottom}}}",
        f"{top} \\div {bottom}",
        f"\\text{{{top}/{bottom}}}",
    ]
    whole, rest = divmod(abs(top), bottom)
    if whole and rest:
        minus = "-" if top < 0 else ""
        ways += [f"{minus}{whole}\\frac{{{rest}}}{{{bottom}}}", f"{minus}{whole} {rest}/{bottom}"]
    if bottom == 1:
        commas = f"{top:,}"
        ways += [commas, commas.replace(",", "{,}"), commas.replace(",", "\\,"), f"{top}.00"]
        ways += [
            f"{top}\\text{{ cm}}",
            f"0{top}" if top >= 0 else f"-0{-top}",
            f"\\mathbf{{{top}}}",
        ]
    digits = bottom
    for prime in (2, 5):
        while digits % prime == 0:
            digits //= prime
    if digits == 1:
        decimal = format(float(value), ".15g")
        if "e" not in decimal and Fraction(decimal) == value:
            ways += [
                decimal,
                decimal.replace("0.", ".", 1) if decimal.startswith("0.") else decimal,
            ]
    return draw(st.sampled_from(ways))


def quick(gold, answer):
    return same_text(gold, answer, ExactDecider())


@given(st.data(), rationals)
def test_equal_rationals_are_equal_in_any_notation_without_a_child(data, value):
    assert quick(data.draw(notations(value)), data.draw(notations(value)))


@given(st.data(), rationals, rationals)
def test_unequal_rationals_are_unequal_in_any_notation(data, first, second):
    assume(first != second)
    assert not quick(data.draw(notations(first)), data.draw(notations(second)))


@given(rationals, st.integers(30, 200))
def test_there_is_no_tolerance(value, digits):
    near = value + Fraction(1, 10**digits)
    assert not quick(f"{value}", f"{near.numerator}/{near.denominator}")


@given(
    st.integers(0, 99),
    digits(0, 3),
    digits(1, 4),
)
def test_a_period_in_brackets_repeats_for_ever(whole, decimals, period):
    tail = Fraction(int(period), (10 ** len(period) - 1) * 10 ** len(decimals))
    value = whole + Fraction(int(decimals or "0"), 10 ** len(decimals)) + tail
    for sign, expected in (("", value), ("-", -value)):
        written = f"{sign}{whole}.{decimals}({period})"
        assert quick(f"{expected}", written) and quick(written, f"x = {expected}")
        assert quick(f"{sign}{whole}.{decimals}\\overline{{{period}}}", written)
        assert not quick(f"{expected + Fraction(1, 10**9)}", written)


def test_beside_anything_else_a_bracket_behind_a_decimal_is_a_factor():
    for product in ("0.5(3) + 1", "0.5 (5)", "0.5(2+3)", "2(0.5)(5)/2", "0.5(5.0)"):
        assert quick("2.5", product), product


@given(st.integers(1, 16**4))
def test_hexadecimal_digits_are_of_either_case(value):
    lower, upper = f"{value:x}_{{16}}", f"{value:X}_{{16}}"
    if value < 16 and lower != upper:
        return  # A letter with a subscript.
    assert quick(upper, lower) and quick(lower, upper) and quick(f"{value}", lower)
    assert not quick(f"{value + 1:X}_{{16}}", lower)
    assert quick(upper, f"{value:x} base 16")


def test_a_letter_with_a_subscript_is_no_numeral():
    for entry in ("2a_{11}", "2b_{12}", "a_{16}", "ab_{12}"):
        assert not isinstance(read(entry), Numeral), entry


@given(st.integers(0, 40), st.integers(0, 40))
def test_numbers_of_choices_in_any_notation(larger, smaller):
    ways = [
        f"^{{{larger}}}C_{{{smaller}}}",
        f"^{larger}C_{smaller}",
        f"{{}}^{{{larger}}}\\mathrm{{C}}_{smaller}",
        f"{{}}_{larger}C_{{{smaller}}}",
        f"{larger} choose {smaller}",
        f"{larger}\\text{{ choose }}{smaller}",
        f"{{{larger} \\choose {smaller}}}",
        f"\\dbinom{{{larger}}}{{{smaller}}}",
    ]
    value = math.comb(larger, smaller)
    for way in ways:
        assert quick(f"{value}", way) and quick(way, f"x = {value}"), way
        assert not quick(f"{value + 1}", way), way
        assert quick(f"{3 * value}", f"3 \\cdot {way}") or "choose" in way, way


@pytest.mark.parametrize("text", ["x^5C_2", "x^5 C_2", "2^5C_2", "5C_2", "(a+b)^5C_2", "C_5^2"])
def test_a_power_before_a_letter_is_no_number_of_choices(text):
    assert not same_text("10", text, NumericDecider()) and "binom" not in clean(text)


@given(st.lists(st.integers(-50, 50), min_size=2, max_size=6, unique=True), st.randoms())
def test_sets_have_no_order_and_tuples_have(items, random):
    shuffled = items[:]
    random.shuffle(shuffled)
    inside, other = (", ".join(map(str, i)) for i in (items, shuffled))
    assert quick(f"\\{{{inside}\\}}", f"\\{{{other}\\}}")
    assert quick(inside, other)
    assert quick(f"({inside})", f"({other})") == (items == shuffled)
    assert not quick(f"\\{{{inside}\\}}", f"\\{{{other}, 77\\}}")


@given(st.integers(-20, 20), st.integers(-20, 20), st.booleans(), st.booleans())
def test_interval_equals_its_inequality(low, high, low_closed, high_closed):
    assume(low < high)
    interval = f"{'[' if low_closed else '('}{low}, {high}{']' if high_closed else ')'}"
    signs = ["\\le" if closed else "<" for closed in (low_closed, high_closed)]
    assert quick(interval, f"{low} {signs[0]} x {signs[1]} {high}")
    turned = [{"\\le": "<", "<": "\\le"}[sign] for sign in signs]
    assert not quick(interval, f"{low} {turned[0]} x {signs[1]} {high}")


coefficients = st.lists(st.integers(-9, 9), min_size=2, max_size=4)


def polynomial(values):
    return " + ".join(f"({c})x^{{{power}}}" for power, c in enumerate(values))


@settings(max_examples=30, deadline=None)
@given(coefficients, coefficients)
def test_polynomials_are_equal_exactly_if_their_coefficients_are(first, second):
    def trimmed(values):
        return values[: max((i + 1 for i, c in enumerate(values) if c), default=0)]

    expected = trimmed(first) == trimmed(second)
    decider = NumericDecider()
    assert same_text(polynomial(first), polynomial(second), decider) == expected
    horner = "0"
    for value in reversed(first):
        horner = f"({horner})x + ({value})"
    assert same_text(polynomial(first), horner, decider)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 60), st.integers(2, 60))
def test_products_of_roots(a, b):
    decider = NumericDecider()
    assert same_text(f"\\sqrt{{{a * b}}}", f"\\sqrt{{{a}}}\\sqrt{{{b}}}", decider)
    assert not same_text(f"\\sqrt{{{a * b + 1}}}", f"\\sqrt{{{a}}}\\sqrt{{{b}}}", decider)
    assert same_text(f"\\frac{{1}}{{\\sqrt{{{a}}}}}", f"\\frac{{\\sqrt{{{a}}}}}{{{a}}}", decider)


@settings(max_examples=15)
@given(st.integers(-9, 9), st.integers(1, 9), st.integers(-3, 3), st.sampled_from([-1, 1]))
def test_a_family_of_solutions_has_no_first_member(start, step, shift, way):
    gold, other = f"{start} + {step}k", f"{start + shift * step} + {way * step}"
    stated = f"{gold}, k \\in \\mathbb{{Z}}"
    decider = NumericDecider()
    assert same_text(stated, f"{other}n, n \\in \\mathbb{{Z}}", decider)
    assert not same_text(stated, f"{start} + {step + 1}n", decider)
    assert same_text(gold, f"{other}k", decider) == (shift == 0 and way == 1)


def test_nearly_equal_constants_are_unequal():
    decider = NumericDecider()
    assert not same_text("262537412640768744", "e^{\\pi\\sqrt{163}}", decider)
    assert not same_text("\\sqrt{2} + 10^{-80}", "\\sqrt{2}", decider)
    assert not same_text("0", "e^{-300}", decider)
    assert not same_text("x + 10^{-50}", "x", decider)


def test_domain_is_where_both_are_real():
    decider = NumericDecider()
    assert same_text("\\ln x^2", "2 \\ln x", decider)
    assert not same_text("\\sqrt{x^2}", "x", decider)
    assert same_text("\\sqrt{a}\\sqrt{b}", "\\sqrt{ab}", decider)
    assert same_text("x^{1/3}", "\\sqrt[3]{x}", decider)
    assert same_text("\\sqrt{-x^2-1}", "i\\sqrt{x^2+1}", decider)
    assert same_text("\\frac{x^2-1}{x-1}", "x+1", decider)


latex = st.lists(
    st.sampled_from(
        "1 2 007 3.5 , . ; : + - * / ^ _ ! = < > ( ) [ ] { } \\{ \\} | x y e i \\pi \\frac \\sqrt "
        "\\text{cm} \\text{ and } \\pm \\le \\cup \\in \\infty \\circ \\% \\$ $ \\left( \\right) & "
        "\\\\ \\begin{pmatrix} \\end{pmatrix} \\log \\binom \\emptyset \\mathbb{R} \\ldots k= "
        "\\overline{3} \\boxed \\to (A) base_2 \\cdot \\, ' \" ² ½ √ ∞ − \\ \\; apples".split(" ")
    ),
    max_size=14,
).map("".join)


@settings(max_examples=400)
@given(st.one_of(latex, st.text(max_size=60)))
def test_reading_never_raises_and_reads_alike_twice(text):
    assert read(text) == read(text)


@settings(max_examples=400, deadline=None)
@given(latex, latex)
def test_comparison_never_raises_anything_but_undecided(gold, answer):
    try:
        assert quick(gold, answer) in (True, False)
    except Undecided:
        pass


@settings(max_examples=400, deadline=None)
@given(latex)
def test_what_is_compared_without_arithmetic_equals_itself(text):
    assume(isinstance(read(text), Text | Unparsed | Numeral | Colons | Option))
    assume(read(text) != Text(""))
    assert quick(text, text)


@pytest.fixture(scope="module")
def verifier():
    verifier = Verifier(num_workers=1, timeout_s=5.0, max_memory_mb=1024)
    yield verifier
    verifier.close()


@settings(max_examples=60, deadline=None)
@given(gold=latex, answer=latex)
def test_verifier_answers_for_any_text(verifier, gold, answer):
    start = time.monotonic()
    verdict = verifier.verify(f"\\boxed{{{answer}}}", gold)
    assert verdict.correct in (True, False)
    assert time.monotonic() - start < 60


@pytest.mark.parametrize(
    "bomb",
    [
        "9^{9^{9^{9}}}",
        "2^" * 300 + "2",
        "1" * 1999,
        "1+" * 999 + "1",
        "(" * 900 + "1" + ")" * 900,
        "\\frac{1}{" * 200 + "1" + "}" * 200,
        "-" * 1900 + "1",
        "1!" * 900,
        "1," * 990 + "1",
        "\\{" * 900,
        "|" * 1900,
        "\\text{" * 300 + "a" + "}" * 300,
        "(A) " * 400,
        "A. " * 600,
        "x_{" * 300 + "1" + "}" * 300,
        "(((x+1)^{99}+1)^{99}+1)^{99}",
        "(10^{10})!",
        "10^{-10^{10}}",
        "{" * 1900,
        ". , " * 480,
        "\\" * 1999,
        "[" + "1,2;" * 480 + "1,2]",
        "((1,2)^T" * 200,
        "<1," * 500 + ">",
        "(10^{60}x + 1)^{12} < 0",
        "".join(f"(x-{n})" for n in range(1, 13)) + " < 0",
        "720720x^3 + x + 720720 < 0",
        "1:" * 900 + "1",
        "\\hat{i}+" * 300 + "\\hat{j}",
        "5" + " \\approx 5" * 200,
        "P(" * 300 + "1,2" + ")" * 300,
        "1 h " * 400,
        "9^{9^{9}}x < 1",
        "k∈Z " * 499,
        "for all x " * 199,
        "k^{k^{k}}\\pi, k \\in \\mathbb{Z}",
        "all real numbers except 1," + "2," * 900 + "3",
        "x \\ne 2" + " and a half" * 180,
        "0." + "123" * 600 + "4...",
    ],
)
@pytest.mark.parametrize("gold", ["5", "\\sqrt{2}", "x^2 + 1"])
def test_bombs_are_read_and_refused_quickly(bomb, gold):
    start = time.process_time()
    try:
        result = quick(gold, bomb)
    except Undecided:
        result = same_text(gold, bomb, NumericDecider())
    assert result is False
    assert time.process_time() - start < 1.5
