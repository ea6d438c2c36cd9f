# SPDX-License-Identifier: Apache-2.0
"""Calls that run at once: their results, the first error, and what was sampled in vain."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Coroutine
from typing import Any

import pytest

from rlrun.errors import GenerationError
from rlrun.generation.together import run_together
from rlrun.interfaces import Abandoned
from tests.loops import settled


async def returns(tokens: int) -> int:
    return tokens


async def abandons(tokens: int) -> int:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        raise Abandoned(tokens) from None
    return 0


async def fails(tokens: int) -> int:
    await asyncio.sleep(0)
    error = GenerationError("engine", "gone")
    error.tokens = tokens
    raise error


async def is_wrong() -> int:
    await asyncio.sleep(0)
    raise KeyError("a bug")


def together(*coroutines: Coroutine[Any, Any, int]) -> list[int]:
    return asyncio.run(run_together(coroutines, lambda tokens: tokens))


def test_results_come_in_order() -> None:
    assert together(returns(3), returns(1), returns(2)) == [3, 1, 2]
    assert together() == []


def test_the_first_error_ends_the_others_and_counts_what_all_had() -> None:
    with pytest.raises(GenerationError, match="gone") as caught:
        together(returns(1), abandons(10), fails(100), abandons(1000))
    assert caught.value.tokens == 1111


def test_a_cancellation_counts_what_all_had() -> None:
    async def run() -> int:
        task = asyncio.create_task(
            run_together([returns(1), abandons(10), abandons(100)], lambda tokens: tokens)
        )
        await settled()
        task.cancel()
        with pytest.raises(Abandoned) as caught:
            await task
        return caught.value.tokens

    assert asyncio.run(run()) == 111


def test_another_error_comes_as_it_is() -> None:
    with pytest.raises(KeyError, match="a bug"):
        together(abandons(10), is_wrong())


def test_an_error_keeps_its_tokens_on_the_way_to_another_process() -> None:
    error = GenerationError("engine", "gone", "Wait")
    error.tokens = 7
    copy = pickle.loads(pickle.dumps(error))
    assert (str(copy), copy.tokens) == (str(error), 7)
