# SPDX-License-Identifier: Apache-2.0
"""A generator process that has imported everything before a run asks for it.

A command of forked.py forks it first of all, while it has one thread and has opened nothing. It is
a child of the run and does what ``python -m rlrun.generation.process_child`` does, in a session of
its own, with the pipes and the log that the run gives it; it ends with the run if it is not used.
A second generator process of a run is started by Python as ever.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import traceback
from asyncio.streams import FlowControlMixin
from typing import Any, BinaryIO

MODULE = "rlrun.generation.process_child"


def stand_by() -> None:
    """From now on the next generator process of this one is forked already."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    pid = os.fork()
    if pid == 0:
        ours.close()
        _become_generator(theirs)
    theirs.close()
    start = asyncio.create_subprocess_exec
    unused = [pid]

    async def start_or_take(*words: str, **options: Any) -> Any:
        if MODULE in words and unused:
            return await _take(unused.pop(), ours, options["stderr"])
        return await start(*words, **options)

    asyncio.create_subprocess_exec = start_or_take  # type: ignore[assignment]  # as it is called


def _become_generator(parent: socket.socket) -> None:
    _, given, _, _ = socket.recv_fds(parent, 1, 3)
    if not given:
        os._exit(0)
    parent.close()
    os.setsid()
    for number, descriptor in enumerate(given):
        os.dup2(descriptor, number)
        os.close(descriptor)
    from rlrun.generation.process_child import main

    try:
        main()
    except BaseException:  # noqa: BLE001 (this is where the interpreter would end)
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(1)
    os._exit(0)


async def _take(pid: int, process: socket.socket, log: BinaryIO) -> Generator:
    their_in, our_in = os.pipe()
    our_out, their_out = os.pipe()
    socket.send_fds(process, [b"0"], [their_in, their_out, log.fileno()])
    for descriptor in (their_in, their_out):
        os.close(descriptor)
    process.close()
    loop, stdout = asyncio.get_running_loop(), asyncio.StreamReader()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(stdout), os.fdopen(our_out, "rb", 0)
    )
    transport, protocol = await loop.connect_write_pipe(
        FlowControlMixin, os.fdopen(our_in, "wb", 0)
    )
    return Generator(pid, asyncio.StreamWriter(transport, protocol, None, loop), stdout)


class Generator:
    """The process, with what is used of ``asyncio.subprocess.Process``."""

    def __init__(self, pid: int, stdin: asyncio.StreamWriter, stdout: asyncio.StreamReader) -> None:
        self.pid, self.stdin, self.stdout = pid, stdin, stdout
        self.returncode: int | None = None

    async def wait(self) -> int:
        """The exit status; negative for a signal."""
        while self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
            else:
                await asyncio.sleep(0.01)
        return self.returncode

    def kill(self) -> None:
        """Ends it at once."""
        if self.returncode is None:
            os.kill(self.pid, signal.SIGKILL)
