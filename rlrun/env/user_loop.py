# SPDX-License-Identifier: Apache-2.0
"""The event loop of a user's coroutines, in a thread of its own.

One that blocks (time.sleep, a long computation) holds up other coroutines of the user, but not the
run, whose limits hold. A thread cannot be ended from outside: what blocks for longer than its limit
keeps its loop, and what comes after it gets another.
"""

from __future__ import annotations

import asyncio
import os
import sys
import sysconfig
import threading
import traceback
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from pathlib import Path
from typing import TypeVar

ANSWER_S = 1.0
"""Within which a loop that nothing blocks comes round."""

NOT_THE_USERS = (
    *(f"{sysconfig.get_path(name)}{os.sep}" for name in ("stdlib", "purelib")),
    f"{Path(__file__).resolve().parent.parent}{os.sep}",
    "<frozen",
)
"""Where files begin of which a line does not tell a user what blocks."""

T = TypeVar("T")


class UserLoop:
    """An event loop that is started when it is first needed."""

    def __init__(self) -> None:
        self._thread: _LoopThread | None = None
        self._started: list[_LoopThread] = []

    async def run(self, call: Callable[[], object]) -> object:
        """What a call in the loop returns, awaited if it is awaitable.

        Cancelling this cancels the call, and does not wait for its end.

        Raises:
            BaseException: What the call raises.
        """
        return _content(await asyncio.wrap_future(self._begin(call)))

    def run_blocking(self, call: Callable[[], T], timeout_s: float | None = None) -> T:
        """What a plain call in the loop returns; blocks until then.

        Raises:
            TimeoutError: There is no answer within ``timeout_s``.
            BaseException: What the call raises.
        """
        made: list[T] = []
        try:
            outcome = self._begin(lambda: made.append(call())).result(timeout_s)
        except TimeoutError as error:
            raise TimeoutError(f"no answer within {timeout_s:g} s") from error
        _content(outcome)
        return made[0]

    async def blocked_at(self) -> str | None:
        """Where in the code the loop is blocked, for a message; None if it is not.

        A blocked loop gets no further calls; those that it has may still come to their end.
        """
        thread = self._thread
        if thread is None or not thread.is_alive():
            return None
        round_trip = asyncio.wrap_future(asyncio.run_coroutine_threadsafe(_nothing(), thread.loop))
        await asyncio.wait([round_trip], timeout=ANSWER_S)
        if round_trip.done():
            return None
        if self._thread is thread:
            self._thread = None
        return thread.place()

    def close(self) -> None:
        """Cancels what is running; a loop that is blocked ends later. May be called twice."""
        for thread in self._started:
            if thread.is_alive():
                thread.loop.call_soon_threadsafe(thread.end.set)
        self._thread, self._started = None, []

    def _begin(self, call: Callable[[], object]) -> Future[tuple[object, BaseException | None]]:
        if self._thread is None or not self._thread.is_alive():
            self._thread = _LoopThread()
            self._started.append(self._thread)
        return asyncio.run_coroutine_threadsafe(_outcome(call), self._thread.loop)


class _LoopThread(threading.Thread):
    """Runs a loop until its ``end`` is set; nothing waits for it when the program ends."""

    loop: asyncio.AbstractEventLoop
    end: asyncio.Event

    def __init__(self) -> None:
        super().__init__(name="user code", daemon=True)
        self._started_loop = threading.Event()
        self.start()
        self._started_loop.wait()

    def run(self) -> None:
        """See ``threading.Thread.run``."""
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        self.loop, self.end = asyncio.get_running_loop(), asyncio.Event()
        self._started_loop.set()
        await self.end.wait()

    def place(self) -> str:
        """The line of the user that is being executed."""
        assert self.ident is not None, "it was started"
        frames = list(traceback.walk_stack(sys._current_frames()[self.ident]))
        places = [f"{frame.f_code.co_filename}:{line}" for frame, line in frames]
        users = [place for place in places if not place.startswith(NOT_THE_USERS)]
        return (users or places)[0]


async def _outcome(call: Callable[[], object]) -> tuple[object, BaseException | None]:
    """What a call comes to. Nothing that it raises may reach the loop, which it could end."""
    try:
        result = call()
        return (await result if isinstance(result, Awaitable) else result), None
    except BaseException as problem:  # noqa: BLE001 - raised again by who asked for it
        return None, problem


def _content(outcome: tuple[object, BaseException | None]) -> object:
    result, problem = outcome
    if problem is not None:
        raise problem
    return result


def blocking(place: str | None) -> str:
    """What to add to the message of a limit that passed, with what ``UserLoop.blocked_at`` says."""
    if place is None:
        return ""
    return f"; {place} blocks the event loop: async code must await whatever takes time"


async def _nothing() -> None:
    """What a loop does as soon as it comes round."""
