# SPDX-License-Identifier: Apache-2.0
import ast
import asyncio
import operator
import time
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.env.arithmetic import ArithmeticProblem, calculate, show
from rlrun.env.calculator import CalculatorEnv
from tests.env.episodes import episode, row

SETTINGS = CalculatorEnv(num_workers=1, timeout_s=5.0, max_memory_mb=1024)


def step(response, answer="36"):
    async def main():
        environment = SETTINGS.start()
        try:
            return await environment.step(episode(response, answer))
        finally:
            await environment.close()

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("call", "content"),
    [
        ("12*3", "36"),
        (" 2 + 2 ", "4"),
        ("1/3", "0.333333333333"),
        ("7 // 2", "3"),
        ("2^10", "1024"),
        ("0.1+0.2", "0.3"),
        ("1/0", "error: division by zero"),
        ("2 +", "error: not an arithmetic expression"),
        ("0.10000000000000000000000001*10**26", "10000000000000000000000001"),
        ("__import__('os')", "error: only numbers and + - * / // % ** are known"),
    ],
)
def test_turn_that_ends_with_a_call_gets_the_result(call, content):
    answered = step(f"Let me see. <calc>{call}</calc>\n")
    assert answered.messages == ({"role": "tool", "content": content},)
    assert answered.reward is None and answered.failure is None


def test_turn_without_a_call_at_its_end_is_scored():
    right = step("<calc>12*3</calc> gives \\boxed{36}")
    assert (right.reward, right.rewards, right.extracted) == (1.0, {"correct": 1.0}, "36")
    assert step("\\boxed{35}").reward == 0.0
    assert step("<calc>12*3").reward == 0.0


def test_calculator_result_left_in_the_text_is_no_answer():
    assert step("<calc>36</calc> is the call").reward == 0.0


def test_rows_need_a_readable_reference():
    assert SETTINGS.check_row(row("36")) is None
    assert "empty" in SETTINGS.check_row(row(""))


OPERATORS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


@st.composite
def expressions(draw, depth=3):
    """An expression as text and its value."""
    if depth == 0 or draw(st.booleans()):
        value = draw(st.integers(0, 999))
        return str(value), Fraction(value)
    sign = draw(st.sampled_from(sorted(OPERATORS)))
    left, left_value = draw(expressions(depth=depth - 1))
    right, right_value = draw(expressions(depth=depth - 1))
    if sign == "/" and right_value == 0:
        right, right_value = "1", Fraction(1)
    return f"({left} {sign} {right})", OPERATORS[sign](left_value, right_value)


@given(expressions())
def test_calculation_is_exact(pair):
    text, value = pair
    if len(text) <= 200:
        assert calculate(text) == value


@given(st.text(max_size=60))
def test_any_text_is_calculated_or_refused(text):
    try:
        show(calculate(text))
    except ArithmeticProblem:
        pass


@pytest.mark.parametrize(
    "bomb",
    [
        "9**9**9**9",
        "9**999999999",
        "2**1000**2",
        "(" * 99 + "1" + ")" * 99,
        "-" * 199 + "1",
        "10**500*10**500*10**500",
        "1e9999999",
        "1e4000",
        "1e-400 ** 900",
        "9" * 200 + "0",
        "0.5**(1/3)",
        "True + 1",
        "1j",
        "'a'*9",
        "[1]*9",
        "(lambda: 1)()",
        "",
    ],
)
def test_bombs_and_code_are_refused_at_once(bomb):
    start = time.process_time()
    try:
        calculate(bomb)
    except ArithmeticProblem:
        pass
    else:
        ast.parse(bomb, mode="eval")
        assert set(bomb) <= set("()1-")
    assert time.process_time() - start < 0.5


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(36), "36"),
        (Fraction(12, 5), "2.4"),
        (Fraction(-1, 8), "-0.125"),
        (Fraction(2, 3), "0.666666666667"),
        (Fraction(10**30), "1" + "0" * 30),
        (Fraction(1, 10**20), "1E-20"),
        (Fraction(100, 3), "33.3333333333"),
        (Fraction(0), "0"),
    ],
)
def test_values_are_shown_short(value, text):
    assert show(value) == text
