# SPDX-License-Identifier: Apache-2.0
"""The one thread in which this process computes with torch, and the threads that it commands.

OpenMP keeps a team of workers for every thread that ever entered a parallel region. Once two teams
hold more threads than there are cores, their workers sleep instead of waiting for work, and each
small operation pays for waking them: two teams of two on two cores decode at half the speed of one
(docs/performance.md). So learner and generator of one process take turns in the same thread, and
the main thread, where the event loop must go on, computes nothing that is worth dividing.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="compute")


def use_threads(count: int) -> None:
    """Gives the compute thread a team of ``count`` and the calling thread none."""
    import torch

    torch.set_num_threads(1)
    # A thread reads the count when it first computes, and then keeps it.
    torch.get_num_threads()
    compute_blocking(torch.set_num_threads, count)


def submit(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
    """Has ``work`` done after what was submitted before."""
    return _thread.submit(work, *args, **kwargs)


def compute_blocking(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises; blocks until then."""
    return submit(work, *args, **kwargs).result()


async def compute(work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """What ``work`` returns or raises; the event loop goes on meanwhile."""
    call = functools.partial(work, *args, **kwargs)
    return await asyncio.get_running_loop().run_in_executor(_thread, call)


async def finish_computing() -> None:
    """Returns when everything that was submitted is done."""
    await compute(lambda: None)
