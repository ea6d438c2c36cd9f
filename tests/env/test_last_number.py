# SPDX-License-Identifier: Apache-2.0
"""The lenient reward takes the last number, and nothing but its value."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.env.last_number import reward
from rlrun.env.python import PythonEnv
from tests.env.episodes import episode


@pytest.mark.parametrize(
    ("response", "answer", "value"),
    [
        ("9", "9", 1.0),
        ("The sum of 4 and 5 is 9.", "9", 1.0),
        ("4+5=9", "9", 1.0),
        ("4 + 5 = 9, so 9 it is", "9", 1.0),
        ("9 is 4 + 5", "9", 0.0),
        ("19", "9", 0.0),
        ("It is 9.0", "9", 1.0),
        ("It is 9.5", "9", 0.0),
        ("-9", "9", 0.0),
        ("5-9", "9", 1.0),
        ("it is -9.", "-9", 1.0),
        ("it is \u22129", "-9", 1.0),
        ("it is \u22129", "9", 0.0),
        ("5\u22129", "9", 1.0),
        ("1,234", "1234", 1.0),
        ("1234", "1,234", 1.0),
        ("1, 234", "1234", 0.0),
        ("v1.2.9", "9", 0.0),
        ("nine", "9", 0.0),
        ("", "9", 0.0),
    ],
)
def test_the_value_of_the_last_number_decides(response: str, answer: str, value: float) -> None:
    assert reward(response, answer) == value


@given(st.integers(-(10**9), 10**9), st.text(st.characters(categories=["L", "Zs"])))
def test_words_around_a_number_change_nothing(number: int, words: str) -> None:
    assert reward(f"{words} {number:,} {words}", str(number)) == 1.0
    assert reward(f"{words} {number} {words}", str(number + 1)) == 0.0


def test_an_answer_without_a_number_is_a_failure_and_no_reward() -> None:
    async def step() -> object:
        settings = PythonEnv(
            environment=None,
            reward_function="rlrun.env.last_number:reward",
            options={},
            timeout_s=200.0,
            num_threads=1,
        )
        environment = settings.start()
        try:
            return await environment.step(episode("9", answer="nine"))
        finally:
            await environment.close()

    result = asyncio.run(step())
    assert result.reward is None
    assert "'nine' is not a number" in result.failure.message
