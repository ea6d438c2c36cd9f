# SPDX-License-Identifier: Apache-2.0
"""A transformers generator in a process of its own, with its own copy of the weights.

The process is rlrun.generation.process_child. It answers calls as they come (or one at a time as a
static batch, where results must not depend on timing), and takes new weights between two tokens
from memory that both processes see. A process that dies fails the calls that it had; the next call
starts another one, which begins with the newest weights, and proves it.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import tempfile
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, Literal

import rlrun
from rlrun.errors import GenerationError, TrainingError
from rlrun.generation.abandoned import tokens_in
from rlrun.generation.process_pipe import Call, Child, Reply, StartUp
from rlrun.interfaces import Abandoned, Generator, GeneratorInputs
from rlrun.refit.probe import Proof
from rlrun.refit.shared_memory import SharedWeights
from rlrun.types import Completion, GenerationRequest

log = logging.getLogger(__name__)

WHERE = "generation=transformers"
NAME = "the generator process"

START_TIMEOUT_S = 600.0
STARTS = 2
"""Of a process that is killed from outside while it starts."""

_ROOT = Path(rlrun.__file__).resolve().parent.parent


class ProcessGenerator(Generator):
    """The parent's side of the process."""

    def __init__(self, start_up: StartUp, inputs: GeneratorInputs) -> None:
        """Starts nothing yet; the first refit does."""
        self.lockstep = inputs.ordered
        self._start_up = start_up
        self._temporary = None if inputs.folder is not None else tempfile.TemporaryDirectory()
        folder = inputs.folder or Path(self._temporary.name if self._temporary else "")
        self._log_path = folder / "generator.log"
        self._weights = SharedWeights(inputs.weights)
        self._proof = Proof(inputs.policy.precision)
        self._version: int | None = None
        self._child: Child | None = None
        self._lock = asyncio.Lock()
        self._numbers = 0
        self._closed = False

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """See ``Generator.generate``. A cancelled call says how many tokens it had."""
        if not requests:
            return []
        child = await self._running()
        call = self._call("generate", tuple(requests))
        try:
            with self.at_work(NAME):
                reply = await child.ask(call)
        except asyncio.CancelledError:
            raise Abandoned(await self._cancel(child, call)) from None
        completions: list[Completion] = _content(reply)
        return completions

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """See ``Generator.score``; it comes between two tokens of what is being sampled."""
        child = await self._running()
        scores: list[float] = _content(await child.ask(self._call("score", tuple(token_ids))))
        return scores

    async def engine_scores(self, token_ids: Sequence[int]) -> Mapping[str, list[float]]:
        """See ``Generator.engine_scores``: the process is the one engine there is.

        Whatever takes the place of one that dies over it is asked as well.
        """
        child = await self._running()
        try:
            scores = await self.score(token_ids)
        except GenerationError:
            if child.alive:
                raise
            scores = await self.score(token_ids)
        self._proof.note(token_ids, scores)
        return {NAME: scores}

    async def refit(self, version: int) -> None:
        """See ``Generator.refit``: waits until the process has copied the weights."""
        async with self._lock:
            self._proof.forget()
            self._weights.publish()
            self._version = version
            if self._child is None or not self._child.alive:
                self._child = await self._start()
            else:
                reply = await self._child.ask(self._call("refit", self._newest()))
                if self._child.alive:
                    _content(reply)
                else:
                    # It died meanwhile; what it had fails, and the next one begins as new.
                    self._child = await self._start()

    async def close(self) -> None:
        """Ends the process."""
        self._closed = True
        if self._child is not None:
            await self._child.end()
        self._weights.close()
        if self._temporary is not None:
            self._temporary.cleanup()

    async def _running(self) -> Child:
        async with self._lock:
            if self._closed or self._version is None:
                raise GenerationError(WHERE, "the generator is closed or was never refitted")
            if self._child is None or not self._child.alive:
                log.warning(
                    "the generator process is started again, with version %d", self._version
                )
                self._child = await self._start()
            return self._child

    def _newest(self) -> tuple[int | None, str]:
        """Version and place of the newest weights."""
        return self._version, self._weights.handle()

    async def _start(self) -> Child:
        """Starts a process that has the newest weights, which it proves if one has before it.

        Raises:
            GenerationError: It does not start.
            TrainingError: It computes with other weights.
        """
        for attempt in range(1, STARTS + 1):
            child, reply = await self._start_once()
            if reply.kind == "failed":
                await child.end()
                if child.process.returncode == -signal.SIGKILL and attempt < STARTS:
                    log.warning("%s; it is started again", reply.content)
                    continue
            _content(reply)
            await self._prove(child)
            return child
        raise AssertionError("the last start returns or raises")

    async def _prove(self, child: Child) -> None:
        async def score(token_ids: Sequence[int]) -> list[float]:
            scores: list[float] = _content(await child.ask(self._call("score", tuple(token_ids))))
            return scores

        try:
            await self._proof.check(NAME, score)
        except TrainingError:
            await child.end()
            raise

    async def _start_once(self) -> tuple[Child, Reply]:
        """A process, and whether it has started with the newest weights."""
        with self._log_path.open("ab") as file:
            process = await self._spawn(file)
        child = Child(process, self._log_path)
        child.send(self._start_up)
        child.send(Call(-1, "refit", self._newest()))
        try:
            reply = await asyncio.wait_for(asyncio.shield(child.started), START_TIMEOUT_S)
        except TimeoutError:
            process.kill()
            what = f"the generator process did not start within {START_TIMEOUT_S:g} s"
            raise GenerationError(WHERE, what, f"See {self._log_path}") from None
        except asyncio.CancelledError:
            process.kill()
            raise
        return child, reply

    async def _spawn(self, log_file: BinaryIO) -> Process:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        # Its own process group: Ctrl-C is for the run, which then closes this. Not by
        # process_group=0, which uvloop does not know, and Ray's actors may run on it.
        return await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "rlrun.generation.process_child"),
            stdin=PIPE,
            stdout=PIPE,
            stderr=log_file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )

    async def _cancel(self, child: Child, call: Call) -> int:
        """Tells the process to give a call up; the number of tokens that it had."""
        reply = child.pending.get(call.number)
        if reply is None or not child.alive:
            return 0
        child.send(Call(call.number, "cancel", None))
        answer = await child.answer(reply)
        match answer.kind:
            case "cancelled":
                return int(answer.content)
            case "done":
                return tokens_in(answer.content)
        return 0

    def _call(self, kind: Literal["generate", "score", "refit"], content: Any) -> Call:
        self._numbers += 1
        return Call(self._numbers, kind, content)


def _content(reply: Reply) -> Any:
    """What a reply holds.

    Raises:
        GenerationError: The call failed.
    """
    if reply.kind == "failed":
        remedy = "Out of memory: lower generation.max_batch_size"
        raise GenerationError(WHERE, str(reply.content), remedy)
    return reply.content
