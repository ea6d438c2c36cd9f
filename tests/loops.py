# SPDX-License-Identifier: Apache-2.0
"""Waiting in an event loop without guessing how long something takes on this machine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

TURNS = 200
"""Many times as many as anything here takes from its start to where it waits."""


async def settled() -> None:
    """Returns once all tasks wait for more than their turn: a gate, a timer, another process."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


async def until(true: Callable[[], bool], seconds: float = 120.0) -> None:
    """Returns once something holds that sockets or threads bring about."""
    async with asyncio.timeout(seconds):
        while not true():
            await asyncio.sleep(0.01)
