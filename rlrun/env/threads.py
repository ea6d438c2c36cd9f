# SPDX-License-Identifier: Apache-2.0
"""Blocking user code beside an event loop, in threads that nothing ever waits for at the end."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


async def in_thread(call: Callable[[], object]) -> object:
    """The result of a blocking call.

    The pools of asyncio would wait for a call that never ends when the program ends; a daemon
    thread does not.
    """
    loop = asyncio.get_running_loop()
    done: asyncio.Future[tuple[object, BaseException | None]] = loop.create_future()

    def deliver(outcome: tuple[object, BaseException | None]) -> None:
        if not done.done():
            done.set_result(outcome)

    def work() -> None:
        outcome: tuple[object, BaseException | None]
        try:
            outcome = (call(), None)
        except BaseException as problem:  # noqa: BLE001 - raised again by the caller
            outcome = (None, problem)
        if not loop.is_closed():
            loop.call_soon_threadsafe(deliver, outcome)

    threading.Thread(target=work, name="reward function", daemon=True).start()
    result, problem = await done
    if problem is not None:
        raise problem
    return result
