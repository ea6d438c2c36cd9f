# SPDX-License-Identifier: Apache-2.0
"""Processes that run reasoning-gym verifiers, each bounded in time and memory per answer.

An answer is sent to an idle process as a pickled request; a pickle never crosses anything but
the pipe between this process and its own child. A process that misses its deadline is killed and
replaced.
"""

from __future__ import annotations

import asyncio
import json
import os
import pickle
import struct
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlrun.env.confine import passed_environment
from rlrun.errors import EnvironmentDown

START_TIMEOUT_S = 120.0
"""For a process to import reasoning-gym, and to build a data set's verifier."""

MAX_DEATHS = 2
"""Processes that may die over one answer before the verifier counts as broken."""


class Verdict(StrEnum):
    """How scoring an answer ended."""

    SCORED = "scored"
    LIMIT = "limit"
    """The answer made the verifier hit its time or memory limit: score 0."""
    BROKEN = "broken"
    """The verifier failed, and not because of the answer."""


@dataclass(frozen=True, slots=True)
class Scored:
    """A score with the way it came about."""

    verdict: Verdict
    score: float = 0.0
    message: str = ""


class ScorerPool:
    """Verifier processes for one event loop.

    Args:
        num_workers: Most processes at once; they start when needed.
        timeout_s: For an answer.
        max_memory_mb: That scoring may take beyond what a process needs anyway.
    """

    def __init__(self, *, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        self._timeout_s, self._max_memory_mb = timeout_s, max_memory_mb
        self._slots = asyncio.Semaphore(num_workers)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()

    async def score(self, task: Mapping[str, Any], answer: str) -> Scored:
        """The score of an answer to an entry of a data set."""
        async with self._slots:
            message = ""
            for _ in range(MAX_DEATHS):
                worker = self._idle.pop() if self._idle else await self._start()
                try:
                    scored = await worker.score(task, answer, self._timeout_s)
                except TimeoutError:
                    return Scored(Verdict.LIMIT)
                except _WorkerDied as death:
                    message = str(death)
                else:
                    self._idle.append(worker)
                    return scored
                finally:
                    if worker not in self._idle:
                        await self._end(worker)
            return Scored(Verdict.BROKEN, message=message)

    async def _start(self) -> _Worker:
        worker = await _Worker.start(self._max_memory_mb)
        self._all.add(worker)
        return worker

    async def _end(self, worker: _Worker) -> None:
        self._all.discard(worker)
        await worker.kill()

    async def close(self) -> None:
        """Kills all processes."""
        self._idle.clear()
        while self._all:
            await self._end(next(iter(self._all)))


class _WorkerDied(Exception):
    """The process ended instead of answering."""


class _Worker:
    """One child process; answers one request at a time."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self._opened: set[str] = set()

    @classmethod
    async def start(cls, max_memory_mb: int) -> _Worker:
        """A process that is ready.

        Raises:
            EnvironmentDown: It does not start.
        """
        command = (sys.executable, "-m", "rlrun.env.reasoning_gym_worker", str(max_memory_mb))
        environment = passed_environment(
            OMP_NUM_THREADS="1", PYTHONPATH=os.pathsep.join(filter(None, sys.path))
        )
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                env=environment,
            )
        except OSError as error:
            raise EnvironmentDown(
                "env=reasoning_gym",
                f"no verifier process can be started ({error})",
                "Free memory or processes, or lower env.num_workers",
            ) from error
        worker = cls(process)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                await worker._read()
        except (TimeoutError, _WorkerDied) as error:
            await worker.kill()
            raise EnvironmentDown(
                "env=reasoning_gym", "the verifier process does not start", "See its output above"
            ) from error
        return worker

    async def score(self, task: Mapping[str, Any], answer: str, timeout_s: float) -> Scored:
        """Scores an answer; a TimeoutError or _WorkerDied leaves the process unusable."""
        key = f"{task['name']} {task['config']!r}"
        if key not in self._opened:
            # Building a verifier can take longer than scoring, and no answer is to blame for it.
            request = {"open": key, "name": task["name"], "config": dict(task["config"])}
            try:
                async with asyncio.timeout(START_TIMEOUT_S):
                    opened = await self._ask(request)
            except TimeoutError:
                raise _WorkerDied(f"the verifier of {task['name']} does not start") from None
            if opened["verdict"] == Verdict.BROKEN:
                return Scored(Verdict.BROKEN, message=opened["message"])
            self._opened.add(key)
        async with asyncio.timeout(timeout_s):
            reply = await self._ask({"score": key, "answer": answer, "entry": task["entry"]})
        return Scored(Verdict(reply["verdict"]), float(reply["score"]), reply["message"])

    async def _ask(self, request: Mapping[str, Any]) -> dict[str, Any]:
        body = pickle.dumps(request)
        stdin = self._process.stdin
        assert stdin is not None
        try:
            stdin.write(struct.pack("<Q", len(body)) + body)
            await stdin.drain()
        except ConnectionError as error:
            raise _WorkerDied("the verifier process ended") from error
        return await self._read()

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise _WorkerDied(f"the verifier process ended (code {await self._process.wait()})")
        reply: dict[str, Any] = json.loads(line)
        return reply

    async def kill(self) -> None:
        """Ends the process at once."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        assert self._process.stdin is not None
        self._process.stdin.close()
