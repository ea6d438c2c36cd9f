# SPDX-License-Identifier: Apache-2.0
"""The thread that computes."""

import asyncio
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from rlrun.process.compute import compute, compute_blocking, finish_computing, submit

TEAMS = """
import os
import torch
from rlrun.process.compute import compute_blocking, use_threads

def work():
    a = torch.rand(700, 700)
    return float((a @ a).exp().sum())

def threads():
    return len(os.listdir("/proc/self/task"))

use_threads(2)
compute_blocking(work)
one_team = threads()
work()
assert torch.get_num_threads() == 1, torch.get_num_threads()
assert compute_blocking(torch.get_num_threads) == 2
assert threads() == one_team, (threads(), one_team)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="counts threads in /proc")
def test_only_the_compute_thread_commands_a_team() -> None:
    done = subprocess.run([sys.executable, "-c", TEAMS], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_everything_is_done_in_one_thread_in_order() -> None:
    done: list[int] = []

    def work(number: int) -> threading.Thread:
        done.append(number)
        return threading.current_thread()

    async def several() -> list[threading.Thread]:
        return await asyncio.gather(*[compute(work, number) for number in range(20)])

    with ThreadPoolExecutor(4) as callers:
        elsewhere = list(callers.map(lambda number: compute_blocking(work, number), range(20, 40)))
    threads = {*asyncio.run(several()), *elsewhere}
    assert len(threads) == 1
    assert threading.main_thread() not in threads
    assert done[20:] == list(range(20))


def test_an_error_reaches_the_caller() -> None:
    with pytest.raises(ZeroDivisionError):
        compute_blocking(lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        asyncio.run(compute(lambda: 1 // 0))
    assert compute_blocking(lambda: 7) == 7


def test_finish_waits_for_what_was_submitted() -> None:
    go_on = threading.Event()
    waiting = submit(go_on.wait, 60)

    async def finished() -> bool:
        ending = asyncio.create_task(finish_computing())
        await asyncio.sleep(0)
        assert not ending.done()
        go_on.set()
        await ending
        return waiting.done()

    assert asyncio.run(finished())
