# SPDX-License-Identifier: Apache-2.0
"""What goes between a run and the process of its generator, and the run's end of it.

The first message is a StartUp, the others are Calls; each has one Reply. A process that ends fails
the calls that it has not answered. One that computes says so, with a message of no length: the
answer to a call may take as long as it needs, but a process that neither answers nor computes has
hung and is killed.
"""

from __future__ import annotations

import asyncio
import logging
import pickle
import struct
import time
from asyncio.subprocess import Process
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from rlrun.config.schema import Policy

log = logging.getLogger(__name__)

HEADER = struct.Struct("<Q")
"""Length of the pickled message that follows. A pickle crosses nothing but this pipe."""

CLOSE_TIMEOUT_S = 10.0
ANSWER_TIMEOUT_S = 600.0
"""Without a sign of life from a process that has calls: far more than a pass through the model or
the copy of new weights takes."""

LOG_TAIL_BYTES = 2000


@dataclass(frozen=True, slots=True)
class StartUp:
    """The first message to the process.

    Attributes:
        policy: Names the model and the arithmetic.
        max_batch_size: Rows that run at once.
        ordered: Calls are answered one at a time, each as a static batch.
        recompute_kv_cache: Whether running rows are read anew after a refit.
        deterministic: Whether only reproducible operations are allowed.
        num_threads: CPU threads.
        device: Where to compute.
    """

    policy: Policy
    max_batch_size: int | None
    ordered: bool
    recompute_kv_cache: bool
    deterministic: bool
    num_threads: int
    device: str


@dataclass(frozen=True, slots=True)
class Call:
    """A message to the process; its reply has the same number."""

    number: int
    kind: Literal["generate", "cancel", "score", "refit"]
    content: Any


@dataclass(frozen=True, slots=True)
class Reply:
    """A message from the process.

    Attributes:
        number: Of the call; -1 once when the process has started.
        kind: What came of it; ``cancelled`` has the number of tokens that were sampled for the
            call, ``failed`` an error.
        content: Completions, log-probs, a number or an error.
    """

    number: int
    kind: Literal["done", "cancelled", "failed"]
    content: Any


class Child:
    """One run of the process, and the calls that it has not answered.

    Attributes:
        process: Reads messages from its input and writes replies to its output.
        log_path: Where its other output goes.
        started: The reply to the start.
        pending: Replies that are awaited, by the number of the call.
        reader: Ends when the process does.
        heard: By ``time.monotonic``, when it last gave a sign of life or was given work while it
            had none.
        hung: It was killed for its silence.
    """

    def __init__(self, process: Process, log_path: Path) -> None:
        self.process, self.log_path = process, log_path
        self.started: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self.pending: dict[int, asyncio.Future[Reply]] = {-1: self.started}
        self.reader = asyncio.create_task(self._read())
        self.heard, self.hung = time.monotonic(), False

    @property
    def alive(self) -> bool:
        """Whether it may still answer."""
        return not self.reader.done()

    def send(self, message: StartUp | Call) -> None:
        """Writes a message; does not wait for anything."""
        assert self.process.stdin is not None
        body = pickle.dumps(message)
        self.process.stdin.write(HEADER.pack(len(body)) + body)

    async def ask(self, call: Call) -> Reply:
        """The reply; the future stays in ``pending`` if the caller is cancelled."""
        if not self.pending:
            self.heard = time.monotonic()
        future = self.pending.setdefault(call.number, asyncio.get_running_loop().create_future())
        self.send(call)
        return await self.answer(future)

    async def answer(self, reply: asyncio.Future[Reply]) -> Reply:
        """A reply that is awaited; a process that falls silent over it is killed."""
        while not reply.done() and not self.hung:
            left = self.heard + ANSWER_TIMEOUT_S - time.monotonic()
            if left > 0:
                await asyncio.wait([reply], timeout=left)
                continue
            self.hung = True
            log.warning("the generator process has been silent for %g s: killed", ANSWER_TIMEOUT_S)
            with suppress(ProcessLookupError):  # It may have ended at last.
                self.process.kill()
        return await asyncio.shield(reply)

    async def _read(self) -> None:
        """Hands out replies until the process ends, then fails what is left."""
        assert self.process.stdout is not None
        try:
            while True:
                header = await self.process.stdout.readexactly(HEADER.size)
                body = await self.process.stdout.readexactly(*HEADER.unpack(header))
                self.heard = time.monotonic()
                if not body:
                    continue
                reply: Reply = pickle.loads(body)
                future = self.pending.pop(reply.number, None)
                if future is not None and not future.done():
                    future.set_result(reply)
        except asyncio.IncompleteReadError:
            if self.process.stdin is not None:
                self.process.stdin.close()
            status = await self.process.wait()
        what = "hung and was killed" if self.hung else f"ended with {_ending(status)}"
        error = f"the generator process {what}{self._tail()}"
        pending, self.pending = self.pending, {}
        for number, future in pending.items():
            if not future.done():
                future.set_result(Reply(number, "failed", error))

    def _tail(self) -> str:
        """The last line that the process wrote, and where the rest is."""
        text = self.log_path.read_bytes()[-LOG_TAIL_BYTES:].decode(errors="replace").strip()
        return f" ({text.splitlines()[-1]}; all of it in {self.log_path})" if text else ""

    async def end(self) -> None:
        """Ends the process, by force if it does not listen."""
        if self.process.stdin is not None:
            self.process.stdin.close()
        try:
            await asyncio.wait_for(self.process.wait(), CLOSE_TIMEOUT_S)
        except TimeoutError:
            self.process.kill()
        await self.reader


def _ending(status: int) -> str:
    return f"signal {-status}" if status < 0 else f"status {status}"
