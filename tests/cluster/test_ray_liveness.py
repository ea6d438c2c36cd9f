# SPDX-License-Identifier: Apache-2.0
"""What counts as a sign of life, and how long it is waited for."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest

from rlrun.cluster import ray_liveness


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> Future[str]:
    monkeypatch.setattr(ray_liveness, "ASK_EVERY_S", 0.02)
    monkeypatch.setattr(ray_liveness, "PATIENCE", 5)
    return Future()


def actor(answer: Future[str]) -> Any:
    """What a Ray actor's handle looks like from outside."""
    asked = SimpleNamespace(future=lambda: answer)
    return SimpleNamespace(whereabouts=SimpleNamespace(remote=lambda: asked))


def test_silence_is_waited_for_and_then_told(answer: Future[str]) -> None:
    started = time.monotonic()
    assert not asyncio.run(ray_liveness.answers(actor(answer)))
    assert time.monotonic() - started >= 5 * 0.02 * 0.9


def test_an_answer_counts_however_late(answer: Future[str]) -> None:
    async def work() -> bool:
        asyncio.get_running_loop().call_later(0.05, answer.set_result, "here")
        return await ray_liveness.answers(actor(answer))

    assert asyncio.run(work())


def test_a_run_that_was_stopped_itself_waits_for_the_answer(answer: Future[str]) -> None:
    async def work() -> bool:
        asking = asyncio.create_task(ray_liveness.answers(actor(answer)))
        await asyncio.sleep(0)
        time.sleep(0.3)
        # It is read only after the time has run out.
        asyncio.get_running_loop().call_later(0.03, answer.set_result, "here")
        return await asking

    assert asyncio.run(work())


def test_what_ended_is_an_error(answer: Future[str]) -> None:
    answer.set_exception(ConnectionError("gone"))
    with pytest.raises(ConnectionError):
        asyncio.run(ray_liveness.answers(actor(answer)))
