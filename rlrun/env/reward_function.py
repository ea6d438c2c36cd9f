# SPDX-License-Identifier: Apache-2.0
"""Reward functions of a user, by import path: one sample at a time, or a whole group.

``fn(response: str, answer: str, **row) -> float | dict[str, float]`` is called for each sample. It
gets the text of the last turn, the row's reference answer, and the row's further fields that its
signature names. A dict gives named parts; the reward is its entry "reward" if there is one, else
the sum. A function of ``responses`` in place of ``response`` is called once for all samples of a
prompt and returns a list with what the former would return for each. Both may be async.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence

from rlrun.env.threads import in_thread
from rlrun.env.user_code import Unresolved, is_cancellation, is_failure, resolve, shown, told
from rlrun.env.user_loop import UserLoop, blocking
from rlrun.interfaces import Environment, Episode, GroupEnvironment
from rlrun.run_dir.json_line import finite
from rlrun.types import EnvStep, Failure, FailureKind, Row

logger = logging.getLogger(__name__)

RewardFunction = Callable[..., object]

ONE, ALL = "response", "responses"
"""Parameters by which a function says what it scores."""


def find_function(path: str) -> RewardFunction:
    """The function that an import path names.

    Raises:
        Unresolved: There is none, or it cannot be called as it would be.
    """
    found = resolve(path)
    if not callable(found) or isinstance(found, type):
        raise Unresolved(f"{path} is {found!r}, not a function", "Name a function")
    try:
        signature = inspect.signature(found)
        signature.bind_partial(**{_scored_parameter(found): "", "answer": ""})
    except (TypeError, ValueError) as problem:
        raise Unresolved(
            f"{path} cannot be called with response (or responses) and answer: {problem}",
            "Define it as fn(response, answer, **row) or fn(responses, answer, **row)",
        ) from problem
    if ONE in signature.parameters and ALL in signature.parameters:
        raise Unresolved(
            f"{path} takes both response and responses",
            "Take response to score one sample, responses to score a group",
        )
    return found


def function_environment(
    function: RewardFunction, timeout_s: float, num_threads: int
) -> Environment:
    """An environment around a function of ``find_function``.

    Args:
        function: The function.
        timeout_s: For one call, from when it starts.
        num_threads: Calls at once.
    """
    caller = _Caller(function, timeout_s, num_threads)
    if _scored_parameter(function) == ALL:
        return GroupRewardEnvironment(caller)
    return RewardEnvironment(caller)


def required_fields(function: RewardFunction) -> frozenset[str]:
    """Fields that a row must have, since the function has parameters of these names."""
    parameters = inspect.signature(function).parameters.values()
    variadic = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return frozenset(
        p.name for p in parameters if p.default is p.empty and p.kind not in variadic
    ) - {ONE, ALL, "answer"}


def _scored_parameter(function: RewardFunction) -> str:
    return ALL if ALL in inspect.signature(function).parameters else ONE


class _Caller:
    """Calls a function, and makes failures of what goes wrong.

    A plain function runs in a thread of its own, an async one in an event loop of its own; one that
    exceeds the limit without awaiting anything cannot be ended and keeps its thread, but neither
    the run nor its end waits for it.
    """

    def __init__(self, function: RewardFunction, timeout_s: float, num_threads: int) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._loop = UserLoop()
        self._slots = asyncio.Semaphore(num_threads)
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = {p.name for p in parameters}
        self._scored = _scored_parameter(function)
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )

    async def __call__(self, scored: str | list[str], row: Row) -> object:
        """What the function returned, or a ``Failure``."""
        own = (self._scored, "answer")
        fields = {
            name: value
            for name, value in row.payload.items()
            if name not in own and (self._takes_all or name in self._names)
        }

        def call() -> object:
            return self._function(**{self._scored: scored}, answer=row.answer, **fields)

        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    result = await (self._loop.run(call) if self._is_async else in_thread(call))
                    if isinstance(result, Awaitable):
                        awaitable = result
                        result = await self._loop.run(lambda: awaitable)
            except BaseException as problem:  # user code
                if is_cancellation(problem):
                    raise
                if limit.expired():
                    text = f"no reward within {self._timeout_s:g} s"
                    text += blocking(await self._loop.blocked_at())
                    logger.warning("reward function: %s", text)
                    return Failure(FailureKind.TIMEOUT, text)
                return Failure(FailureKind.REWARD_ERROR, told(problem))
        return result

    def close(self) -> None:
        """Ends the event loop of an async function, as soon as nothing blocks it."""
        self._loop.close()


class RewardEnvironment(Environment):
    """Single-turn episodes, each scored by itself."""

    def __init__(self, caller: _Caller) -> None:
        self._call = caller

    async def step(self, episode: Episode) -> EnvStep:
        """The reward, or a failure with the text of what went wrong."""
        return _step(await self._call(episode.response, episode.prompt.row))

    async def close(self) -> None:
        """Ends the event loop of an async function."""
        self._call.close()


class GroupRewardEnvironment(GroupEnvironment):
    """Single-turn episodes, all of a prompt scored at once."""

    def __init__(self, caller: _Caller) -> None:
        self._call = caller

    async def step_group(self, episodes: Sequence[Episode]) -> list[EnvStep]:
        """The rewards, or failures: of one sample, or of all where the call itself went wrong."""
        responses = [episode.response for episode in episodes]
        result = await self._call(responses, episodes[0].prompt.row)
        if isinstance(result, Failure):
            return [EnvStep(failure=result)] * len(responses)
        as_list = getattr(result, "tolist", None)  # of an array or tensor
        result = as_list() if callable(as_list) else result
        if not isinstance(result, Sequence) or isinstance(result, str):
            what = f"the reward function returned {shown(result)}, not a list of rewards"
        elif len(result) != len(responses):
            what = f"the reward function returned {len(result)} rewards of {len(responses)}"
        else:
            return [_step(one) for one in result]
        return [_failure(what)] * len(responses)

    async def close(self) -> None:
        """Ends the event loop of an async function."""
        self._call.close()


def _failure(message: str) -> EnvStep:
    return EnvStep(failure=Failure(FailureKind.REWARD_ERROR, message))


def _step(result: object) -> EnvStep:
    """What a function returned for one sample, read."""
    if isinstance(result, Failure) and is_failure(result):
        return EnvStep(failure=result)
    parts = dict(result) if isinstance(result, Mapping) else {"reward": result}
    if not parts:
        return _failure("the reward function returned an empty dict")
    numbers: dict[str, float] = {}
    for name, value in parts.items():
        number = finite(value)
        if not isinstance(name, str) or number is None:
            what = f"{name if isinstance(name, str) else shown(name)}={shown(value)}"
            return _failure(f"the reward function returned {what}, not a finite number")
        numbers[name] = number
    if "reward" not in numbers:
        try:
            return EnvStep(reward=math.fsum(numbers.values()), rewards=numbers)
        except OverflowError:
            return _failure(f"the reward function returned {shown(result)}, which has no sum")
    reward = numbers["reward"]
    named = {name: value for name, value in numbers.items() if name != "reward"}
    return EnvStep(reward=reward, rewards=named)
