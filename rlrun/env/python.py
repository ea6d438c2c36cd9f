# SPDX-License-Identifier: Apache-2.0
"""``env=python``: a user's own environment class, or a reward function, by import path.

The class derives from Environment, or from Dialogue, which is less to write (dialogue.py).

A reward function is ``fn(response: str, answer: str, **row) -> float | dict[str, float]``, plain or
async. It gets the text of the last turn, the row's reference answer, and the row's further fields
that its signature names. A dict gives named parts; the reward is its entry "reward" if there is
one, else the sum. Whatever goes wrong in user code is a failure with the text of the error (the
sample is masked), never a reward of 0.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import math
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Real
from typing import Any

from rlrun.env.dialogue import Dialogue, DialogueEnvironment
from rlrun.env.threads import in_thread
from rlrun.env.user_code import Unresolved, resolve
from rlrun.errors import EnvironmentDown
from rlrun.interfaces import Env, Environment, Episode, PolicyAddress, component, setting
from rlrun.types import EnvStep, Failure, FailureKind, Row

logger = logging.getLogger(__name__)

RewardFunction = Callable[..., object]


@component("env/python")
@dataclass(kw_only=True, slots=True)
class PythonEnv(Env):
    """Where the user's code is and how long it may take."""

    environment: str | None
    reward_function: str | None
    options: dict[str, Any]
    timeout_s: float = setting(gt=0)
    num_threads: int = setting(ge=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Exactly one import path, and it must lead to the right kind of thing."""
        if (self.environment is None) == (self.reward_function is None):
            yield (
                ("environment", "reward_function"),
                f"environment={self.environment} with reward_function={self.reward_function}",
                "Set exactly one of them to an import path such as package.module:name",
            )
            return
        if self.reward_function is not None and self.options:
            yield (
                ("options", "reward_function"),
                "options are for an environment class; a reward function would not get them",
                "Remove env.options, or give env.environment",
            )
        key = "environment" if self.reward_function is None else "reward_function"
        try:
            self._resolve()
        except Unresolved as problem:
            yield ((key,), problem.what, problem.remedy)

    def _resolve(self) -> type[Environment] | type[Dialogue] | RewardFunction:
        if self.reward_function is not None:
            return _reward_function(self.reward_function)
        return _environment_class(self.environment or "")

    def check_row(self, row: Row) -> str | None:
        """User code takes any row."""
        return None

    def start(self) -> Environment:
        """The user's environment, or one around the reward function.

        Raises:
            EnvironmentDown: The import path does not resolve or the constructor failed.
        """
        try:
            found = self._resolve()
        except Unresolved as problem:
            raise EnvironmentDown("env", problem.what, problem.remedy) from problem
        if not isinstance(found, type):
            return RewardFunctionEnvironment(found, self.timeout_s, self.num_threads)
        try:
            # Of a dialogue every episode makes one; the first shows whether that works.
            made = found(**self.options)
        except BaseException as problem:
            raise EnvironmentDown(
                "env.environment",
                f"{self.environment} cannot be constructed: {_told(problem)}",
                "Check env.options against the constructor",
            ) from problem
        if isinstance(made, Environment):
            return UserEnvironment(made, self.timeout_s)
        make = functools.partial(found, **self.options)
        return UserEnvironment(DialogueEnvironment(make), self.timeout_s)


def _environment_class(path: str) -> type[Environment] | type[Dialogue]:
    found = resolve(path)
    if not isinstance(found, type) or not issubclass(found, Environment | Dialogue):
        raise Unresolved(
            f"{path} is {found!r}, not a subclass of rlrun.interfaces.Environment or "
            "rlrun.env.dialogue.Dialogue",
            "Derive the class from one of them",
        )
    if inspect.isabstract(found):
        methods = "act" if issubclass(found, Dialogue) else "step and close"
        raise Unresolved(f"{path} leaves abstract methods open", f"Define {methods}")
    return found


def _reward_function(path: str) -> RewardFunction:
    found = resolve(path)
    if not callable(found) or isinstance(found, type):
        raise Unresolved(f"{path} is {found!r}, not a function", "Name a function")
    try:
        inspect.signature(found).bind_partial(response="", answer="")
    except (TypeError, ValueError) as problem:
        raise Unresolved(
            f"{path} cannot be called with response and answer: {problem}",
            "Define it as fn(response, answer, **row)",
        ) from problem
    return found


def _told(problem: BaseException) -> str:
    """An error with the place in the code that raised it."""
    text = f"{type(problem).__name__}: {problem}"
    trace = problem.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    if trace is None:
        return text
    return f"{text} ({trace.tb_frame.f_code.co_filename}:{trace.tb_lineno})"


def _is_cancellation(problem: BaseException) -> bool:
    """Whether rlrun ends the task, rather than user code raising CancelledError by itself."""
    task = asyncio.current_task()
    cancelled = isinstance(problem, asyncio.CancelledError)
    return cancelled and task is not None and task.cancelling() > 0


def _failure(kind: FailureKind, message: str) -> EnvStep:
    return EnvStep(failure=Failure(kind, message))


class UserEnvironment(Environment):
    """A user's environment behind a time limit and a check of what it returns.

    Args:
        inner: The user's environment.
        timeout_s: For one step.
    """

    def __init__(self, inner: Environment, timeout_s: float) -> None:
        self._inner, self._timeout_s = inner, timeout_s

    async def open(self, policy: PolicyAddress | None) -> None:
        """Opens the user's environment.

        Raises:
            EnvironmentDown: It could not be opened.
        """
        try:
            await self._inner.open(policy)
        except BaseException as problem:
            if _is_cancellation(problem):
                raise
            what = f"the environment cannot be opened: {_told(problem)}"
            raise EnvironmentDown("env.environment", what, "Check its open()") from problem

    async def step(self, episode: Episode) -> EnvStep:
        """The user's step, or a failure in its place."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                step = await self._inner.step(episode)
        except BaseException as problem:  # noqa: BLE001 - user code
            if _is_cancellation(problem):
                raise
            if limit.expired():
                return _failure(FailureKind.TIMEOUT, f"no answer within {self._timeout_s:g} s")
            return _failure(FailureKind.ENV_ERROR, _told(problem))
        problem_text = _wrong_step(step)
        return step if problem_text is None else _failure(FailureKind.ENV_ERROR, problem_text)

    async def close(self) -> None:
        """Closes the user's environment.

        Raises:
            EnvironmentDown: It could not be closed.
        """
        try:
            await self._inner.close()
        except BaseException as problem:
            if _is_cancellation(problem):
                raise
            what = f"the environment cannot be closed: {_told(problem)}"
            raise EnvironmentDown("env.environment", what, "Check its close()") from problem


def _wrong_step(step: object) -> str | None:
    if not isinstance(step, EnvStep):
        return f"step returned {step!r:.200}, not an EnvStep"
    given = [bool(step.messages), step.reward is not None, step.failure is not None]
    if sum(given) != 1:
        return f"step must give exactly one of messages, reward and failure, not {step!r:.200}"
    if step.reward is not None and not math.isfinite(step.reward):
        return f"step returned the reward {step.reward}"
    return None


class RewardFunctionEnvironment(Environment):
    """Single-turn episodes scored by a user's function.

    A plain function runs in a thread of its own; one that exceeds the limit cannot be ended and
    keeps its thread, but neither the run nor its end waits for it.

    Args:
        function: See the module's text.
        timeout_s: For one call, from when it starts.
        num_threads: Calls at once.
    """

    def __init__(self, function: RewardFunction, timeout_s: float, num_threads: int) -> None:
        self._function, self._timeout_s = function, timeout_s
        self._slots = asyncio.Semaphore(num_threads)
        parameters = inspect.signature(function).parameters.values()
        self._takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
        self._names = {p.name for p in parameters} - {"response", "answer"}
        self._is_async = inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(
            type(function).__call__
        )

    async def step(self, episode: Episode) -> EnvStep:
        """The reward, or a failure with the text of what went wrong."""
        row = episode.prompt.row
        fields = {
            name: value
            for name, value in row.payload.items()
            if name not in ("response", "answer") and (self._takes_all or name in self._names)
        }

        def call() -> object:
            return self._function(response=episode.response, answer=row.answer, **fields)

        async with self._slots:
            try:
                async with asyncio.timeout(self._timeout_s) as limit:
                    result = call() if self._is_async else await in_thread(call)
                    if isinstance(result, Awaitable):
                        result = await result
            except BaseException as problem:  # noqa: BLE001 - user code
                if _is_cancellation(problem):
                    raise
                if limit.expired():
                    logger.warning("reward function: no result within %g s", self._timeout_s)
                    return _failure(FailureKind.TIMEOUT, f"no reward within {self._timeout_s:g} s")
                return _failure(FailureKind.REWARD_ERROR, _told(problem))
        return _scored(result)

    async def close(self) -> None:
        """Nothing to end."""


def _scored(result: object) -> EnvStep:
    parts = dict(result) if isinstance(result, Mapping) else {"reward": result}
    if not parts:
        return _failure(FailureKind.REWARD_ERROR, "the reward function returned an empty dict")
    numbers: dict[str, float] = {}
    for name, value in parts.items():
        if not isinstance(name, str) or not isinstance(value, Real) or not math.isfinite(value):
            told = f"the reward function returned {name}={value!r:.100}, not a finite number"
            return _failure(FailureKind.REWARD_ERROR, told)
        numbers[name] = float(value)
    if "reward" not in numbers:
        return EnvStep(reward=math.fsum(numbers.values()), rewards=numbers)
    reward = numbers["reward"]
    named = {name: value for name, value in numbers.items() if name != "reward"}
    return EnvStep(reward=reward, rewards=named)
