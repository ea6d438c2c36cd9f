# SPDX-License-Identifier: Apache-2.0
"""The short way to an environment of several turns: a class of which every episode is an object.

``start`` is told the row, ``act`` gets what the policy said and returns what it is told next, or
``Done`` with the reward. Methods named in ``tools`` answer calls that the policy writes as
``<tool_call>{"name": ..., "arguments": {...}}</tool_call>``; ``act`` gets turns without a call.
All of them may be async; plain ones run in threads of their own.
"""

from __future__ import annotations

import inspect
import json
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rlrun.env.threads import in_thread
from rlrun.interfaces import Environment, Episode
from rlrun.serve.parsers import HermesTools, ToolCall
from rlrun.types import EnvStep, Message, Prompt

MAX_OPEN = 100_000
"""Episodes that are kept; those that were cut are never closed, and the oldest are forgotten."""


@dataclass(frozen=True, slots=True)
class Done:
    """The end of an episode.

    Attributes:
        reward: Finite.
        rewards: Named parts, for the record.
    """

    reward: float
    rewards: Mapping[str, float] = field(default_factory=dict)


class Dialogue(ABC):
    """One episode; made anew for every sample, with env.options as keyword arguments."""

    tools: ClassVar[tuple[str, ...]] = ()
    """Names of methods that the policy may call."""

    def start(self, row: Mapping[str, Any], answer: str) -> object:
        """Called once, before the first ``act``.

        Args:
            row: Further fields of the data row.
            answer: Its reference answer.
        """
        return None

    @abstractmethod
    def act(self, said: str) -> str | Done | Awaitable[str | Done]:
        """What comes after the policy's words: the user's next message, or the end."""


class DialogueEnvironment(Environment):
    """Keeps the episodes of a Dialogue class apart.

    Args:
        make: Makes the object of an episode.
    """

    def __init__(self, make: Callable[[], Dialogue]) -> None:
        self._make = make
        self._open: OrderedDict[tuple[int, int], tuple[Prompt, Dialogue]] = OrderedDict()
        self._parser = HermesTools()

    async def step(self, episode: Episode) -> EnvStep:
        """The next messages, or the reward. What user code raises is the caller's to judge."""
        prompt = episode.prompt
        # Not the group's name: a validation may ask about the same row at the same time.
        key = (id(prompt), episode.sample_index)
        if episode.turn == 1:
            # With the prompt, as no other one can have its id while it is kept.
            self._open[key] = prompt, self._make()
            self._open.move_to_end(key)
            while len(self._open) > MAX_OPEN:
                self._open.popitem(last=False)
            await _called(self._open[key][1].start, prompt.row.payload, prompt.row.answer)
        _, dialogue = self._open[key]
        calls = self._calls(dialogue, episode.response)
        if calls:
            return EnvStep(messages=tuple([await _answer(dialogue, call) for call in calls]))
        result = await _called(dialogue.act, episode.response)
        if isinstance(result, Done):
            del self._open[key]
            return EnvStep(reward=result.reward, rewards=result.rewards)
        if not isinstance(result, str):
            raise TypeError(f"act returned {result!r:.80}, neither a text nor Done")
        return EnvStep(messages=({"role": "user", "content": result},))

    def _calls(self, dialogue: Dialogue, said: str) -> tuple[ToolCall, ...]:
        return self._parser(said, ())[1] if dialogue.tools else ()

    async def close(self) -> None:
        """Forgets all episodes."""
        self._open.clear()


async def _answer(dialogue: Dialogue, call: ToolCall) -> Message:
    """A tool's result; a call that the tool does not take is told to the policy, not a fault."""
    if call.name not in dialogue.tools:
        return _told(f"error: there is no tool {call.name}")
    method = getattr(dialogue, call.name)
    arguments = json.loads(call.arguments)
    try:
        inspect.signature(method).bind(**arguments)
    except TypeError as problem:
        return _told(f"error: {problem}")
    return _told(str(await _called(method, **arguments)))


def _told(text: str) -> Message:
    return {"role": "tool", "content": text}


async def _called(function: Callable[..., Any], *args: Any, **kwargs: Any) -> object:
    """The result of a plain or async method."""
    if inspect.iscoroutinefunction(function):
        result: object = await function(*args, **kwargs)
        return result
    return await in_thread(lambda: function(*args, **kwargs))
