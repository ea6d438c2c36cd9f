# SPDX-License-Identifier: Apache-2.0
"""Runs calls at the same time: one failure ends all, and what they sampled in vain is counted."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from rlrun.errors import GenerationError
from rlrun.generation.abandoned import Abandoned, tokens_of

T = TypeVar("T")


async def run_together(
    coroutines: Sequence[Coroutine[Any, Any, T]],
    tokens_of_result: Callable[[T], int] = lambda result: 0,
) -> list[T]:
    """The results of all, in order; the first error, or a cancellation, ends the others first.

    Args:
        coroutines: May raise ``Abandoned`` when they are cancelled.
        tokens_of_result: Tokens in a result, which are in vain where another one fails.

    Raises:
        Abandoned: This or one of them was cancelled; with the sum over all.
        GenerationError: The first one of a coroutine, likewise.
    """
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    if not tasks:
        return []
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    except asyncio.CancelledError:
        raise Abandoned(await _end(tasks, tokens_of_result)) from None
    error = next((e for e in map(_error, tasks) if e is not None), None)
    if error is None:
        return [task.result() for task in tasks]
    tokens = await _end(tasks, tokens_of_result)
    if isinstance(error, asyncio.CancelledError):
        raise Abandoned(tokens)
    if isinstance(error, GenerationError):
        error.tokens = tokens
    raise error


def _error(task: asyncio.Task[Any]) -> BaseException | None:
    """What a task ended with; a task that ended by itself as if it were cancelled, too."""
    if not task.done():
        return None
    return asyncio.CancelledError() if task.cancelled() else task.exception()


async def _end(tasks: Sequence[asyncio.Task[T]], tokens_of_result: Callable[[T], int]) -> int:
    """Cancels what still runs; the tokens of all."""
    for task in tasks:
        task.cancel()
    # Not gathered: that would make a plain cancellation of what a task says when it is cancelled.
    await asyncio.wait(tasks)
    return sum(tokens_of(task, tokens_of_result) for task in tasks)
