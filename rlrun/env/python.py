# SPDX-License-Identifier: Apache-2.0
"""``env=python``: a user's own environment class, or a reward function, by import path.

The class derives from Environment, or from Dialogue, which is less to write (dialogue.py).

What a reward function is says reward_function.py. Whatever goes wrong in user code is a failure
with the text of the error (the sample is masked), never a reward of 0.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from rlrun.env.dialogue import Dialogue, DialogueEnvironment
from rlrun.env.reward_function import (
    RewardFunction,
    find_function,
    function_environment,
    required_fields,
)
from rlrun.env.user_code import Unresolved, is_cancellation, is_failure, resolve, shown, told
from rlrun.env.user_loop import UserLoop, blocking
from rlrun.errors import EnvironmentDown
from rlrun.interfaces import (
    Env,
    Environment,
    Episode,
    GroupEnvironment,
    PolicyAddress,
    component,
    setting,
)
from rlrun.run_dir.json_line import finite
from rlrun.types import EnvStep, Failure, FailureKind, Row


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
            return find_function(self.reward_function)
        return _environment_class(self.environment or "")

    def check_row(self, row: Row) -> str | None:
        """User code takes any row, but for fields that a reward function cannot be called without.

        Problem and answer are none of them.
        """
        if self.reward_function is None:
            return None
        lacks = sorted(_required_fields(self.reward_function) - row.payload.keys())
        return f"{self.reward_function} needs the field {lacks[0]!r}" if lacks else None

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
            return function_environment(found, self.timeout_s, self.num_threads)
        loop = UserLoop()
        try:
            # Of a dialogue every episode makes one; the first shows whether that works.
            made = loop.run_blocking(functools.partial(found, **self.options))
        except BaseException as problem:
            loop.close()
            raise EnvironmentDown(
                "env.environment",
                f"{self.environment} cannot be constructed: {told(problem)}",
                "Check env.options against the constructor",
            ) from problem
        if isinstance(made, Environment):
            return UserEnvironment(made, self.timeout_s, loop)
        make = functools.partial(found, **self.options)
        return UserEnvironment(DialogueEnvironment(make), self.timeout_s, loop)


@functools.lru_cache(maxsize=8)
def _required_fields(path: str) -> frozenset[str]:
    """Asked for every row of a run."""
    return required_fields(find_function(path))


def _environment_class(path: str) -> type[Environment] | type[Dialogue]:
    found = resolve(path)
    if not isinstance(found, type) or not issubclass(found, Environment | Dialogue):
        raise Unresolved(
            f"{path} is {found!r}, not a subclass of rlrun.interfaces.Environment or "
            "rlrun.env.dialogue.Dialogue",
            "Derive the class from one of them",
        )
    if issubclass(found, GroupEnvironment):
        raise Unresolved(
            f"{path} is a GroupEnvironment, which is not for classes of a user",
            "Give a function of responses and answer in env.reward_function",
        )
    if inspect.isabstract(found):
        methods = "act" if issubclass(found, Dialogue) else "step and close"
        raise Unresolved(f"{path} leaves abstract methods open", f"Define {methods}")
    if issubclass(found, Dialogue):
        _check_tools(path, found)
    return found


def _check_tools(path: str, dialogue: type[Dialogue]) -> None:
    tools = dialogue.tools
    if not isinstance(tools, tuple | list):
        what = f"{path} has tools={shown(tools)}, which is no tuple of names"
        raise Unresolved(what, 'Write tools = ("add",)')
    for name in tools:
        if not isinstance(name, str) or not callable(getattr(dialogue, name, None)):
            what = f"{path} names {shown(name)} in tools, which is none of its methods"
            raise Unresolved(what, "Define the method, or take the name out")


def _failure(kind: FailureKind, message: str) -> EnvStep:
    return EnvStep(failure=Failure(kind, message))


class UserEnvironment(Environment):
    """A user's environment behind a time limit and a check of what it returns.

    Args:
        inner: The user's environment.
        timeout_s: For one step.
        loop: Where all of its code runs, whatever of it blocks.
    """

    def __init__(self, inner: Environment, timeout_s: float, loop: UserLoop) -> None:
        self._inner, self._timeout_s, self._loop = inner, timeout_s, loop

    async def open(self, policy: PolicyAddress | None) -> None:
        """Opens the user's environment.

        Raises:
            EnvironmentDown: It could not be opened.
        """
        with _user_call("open", "cannot be opened"):
            await self._loop.run(lambda: self._inner.open(policy))

    def state(self) -> dict[str, Any]:
        """What the user's environment wants to be kept.

        Raises:
            EnvironmentDown: It is nothing that JSON has.
        """
        if type(self._inner).state is Environment.state:
            return {}  # There is none; and to ask for it would mean to wait for code that blocks.
        with _user_call("state", "has no state that a checkpoint can keep"):
            state = self._loop.run_blocking(self._inner.state, self._timeout_s)
            kept: dict[str, Any] = json.loads(json.dumps({**state}, allow_nan=False))
        return kept

    def restore(self, state: Mapping[str, Any]) -> None:
        """Gives it back.

        Raises:
            EnvironmentDown: It is not taken.
        """
        with _user_call("restore", "does not take the state of the checkpoint"):
            self._loop.run_blocking(lambda: self._inner.restore(state), self._timeout_s)

    async def step(self, episode: Episode) -> EnvStep:
        """The user's step, or a failure in its place."""
        try:
            async with asyncio.timeout(self._timeout_s) as limit:
                step = await self._loop.run(lambda: self._inner.step(episode))
            problem_text = _wrong_step(step)
        except BaseException as problem:  # user code
            if is_cancellation(problem):
                raise
            if limit.expired():
                text = f"no answer within {self._timeout_s:g} s"
                text += blocking(await self._loop.blocked_at())
                return _failure(FailureKind.TIMEOUT, text)
            return _failure(FailureKind.ENV_ERROR, told(problem))
        if problem_text is not None:
            return _failure(FailureKind.ENV_ERROR, problem_text)
        assert isinstance(step, EnvStep), "anything else is a problem"
        return step

    async def close(self) -> None:
        """Closes the user's environment.

        Raises:
            EnvironmentDown: It could not be closed.
        """
        try:
            with _user_call("close", "cannot be closed"):
                await self._loop.run(self._inner.close)
        finally:
            self._loop.close()


@contextmanager
def _user_call(method: str, what: str) -> Iterator[None]:
    """Around a call of a user's environment that must not fail.

    Raises:
        EnvironmentDown: It did.
    """
    try:
        yield
    except BaseException as problem:
        if is_cancellation(problem):
            raise
        text = f"the environment {what}: {told(problem)}"
        raise EnvironmentDown("env.environment", text, f"Check its {method}()") from problem


def _wrong_step(step: object) -> str | None:
    if not isinstance(step, EnvStep):
        return f"step returned {shown(step)}, not an EnvStep"
    # No type checker has seen the class of a user.
    for name, value, fits in (
        ("messages", step.messages, _are_messages(step.messages)),
        ("reward", step.reward, step.reward is None or finite(step.reward) is not None),
        ("rewards", step.rewards, _are_parts(step.rewards)),
        ("extracted", step.extracted, step.extracted is None or isinstance(step.extracted, str)),
        ("failure", step.failure, step.failure is None or is_failure(step.failure)),
    ):
        if not fits:
            return f"step returned an EnvStep with {name}={shown(value)}"
    given = [bool(step.messages), step.reward is not None, step.failure is not None]
    if sum(given) != 1:
        return f"step must give exactly one of messages, reward and failure, not {shown(step)}"
    return None


def _are_messages(value: object) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_message, value))


def _is_message(value: object) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        return False
    content, calls = value.get("content"), value.get("tool_calls") or []
    if not isinstance(calls, list | tuple) or not all(isinstance(c, Mapping) for c in calls):
        return False
    return content is None or isinstance(content, str | list)


def _are_parts(value: object) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(name, str) and finite(part) is not None for name, part in value.items()
    )
