# SPDX-License-Identifier: Apache-2.0
"""Killable child processes for work on untrusted input, usable from any thread.

Each child runs ``rlrun.env.answers.worker`` under a memory limit and a limit of CPU time per job,
both enforced by the kernel, and confined as in ``rlrun.env.confine``: it writes no file, starts no
program, reaches no network and sees none of the variables that may hold keys. It gets JSON lines
through pipes; nothing is pickled and the calling process is never forked in Python. A child that
dies costs the one job it had, and is replaced. Children end by themselves when the process that
started them is gone.
"""

from __future__ import annotations

import json
import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import rlrun
from rlrun.env.confine import passed_environment

logger = logging.getLogger(__name__)

_START_S = 120.0
_END_S = 30.0
_WALL_FACTOR = 20.0
"""Wall-clock seconds per CPU second after which a child counts as stuck for reasons of its own."""
_ATTEMPTS = 2
_ROOT = Path(rlrun.__file__).resolve().parent.parent


class ChildrenDown(Exception):  # the pool is down; no statement about the job
    """A child could not be started, or died for a reason that lies outside the job."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What came of a job.

    Attributes:
        fields: The child's reply; None if the job made it hit a limit or crash.
        limit: Which limit.
    """

    fields: Mapping[str, object] | None
    limit: str = ""


class _Gone(Exception):  # carries how a child ended
    """The child ended before it replied."""

    def __init__(self, returncode: int, had_job: bool) -> None:
        self.returncode, self.had_job = returncode, had_job
        super().__init__(f"verifier child ended with {returncode}")


class _Child:
    def __init__(self, cpu_s: float, memory_mb: int) -> None:
        path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
        arguments = ["-m", "rlrun.env.answers.worker", str(cpu_s), str(memory_mb)]
        try:
            # Its own process group: Ctrl-C is for the run, which then closes the pool.
            self.process = subprocess.Popen(
                [sys.executable, "-P", *arguments],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                bufsize=0,
                process_group=0,
                env=passed_environment(PYTHONPATH=path, PYTHONHASHSEED="0"),
            )
        except OSError as problem:
            raise ChildrenDown(f"a verifier child cannot be started: {problem}") from problem
        self.buffer = b""

    def wait_ready(self) -> None:
        """Blocks until the child has imported what it needs.

        Raises:
            ChildrenDown: It ended or hung instead.
        """
        try:
            self._line(time.monotonic() + _START_S, had_job=False)
        except (_Gone, TimeoutError) as problem:
            self.kill()
            stderr = self.process.stderr
            told = stderr.read().decode(errors="replace").strip() if stderr else ""
            logger.info("what a verifier child wrote before it ended: %s", told)
            # A stack belongs into the log; its last line names the error.
            why = told.splitlines()[-1][-500:] if told else ""
            raise ChildrenDown(f"a verifier child did not start: {problem}. {why}") from problem

    def ask(self, job: Mapping[str, str], wall_s: float) -> Mapping[str, object]:
        """The reply to a job.

        Raises:
            _Gone: The child ended.
            TimeoutError: It neither replied nor used up its CPU time.
        """
        if self.process.stdin is None:
            raise ChildrenDown("a verifier child has no input")
        try:
            self.process.stdin.write(json.dumps(job).encode() + b"\n")
        except BrokenPipeError as problem:
            raise _Gone(self._ending(), had_job=False) from problem
        reply: Mapping[str, object] = json.loads(self._line(time.monotonic() + wall_s, True))
        return reply

    def _line(self, deadline: float, had_job: bool) -> bytes:
        if self.process.stdout is None:
            raise ChildrenDown("a verifier child has no output")
        descriptor = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(descriptor, select.POLLIN | select.POLLHUP)
        while b"\n" not in self.buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not poll.poll(left * 1000):
                raise TimeoutError("no answer in time")
            chunk = os.read(descriptor, 65536)
            if not chunk:
                raise _Gone(self._ending(), had_job)
            self.buffer += chunk
        line, _, self.buffer = self.buffer.partition(b"\n")
        return line

    def _ending(self) -> int:
        """The exit status of a process whose pipes are closed."""
        try:
            return self.process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()

    def kill(self) -> None:
        """Ends the process. May be called twice and from any thread."""
        self.process.kill()
        self.process.wait()

    def dispose(self) -> None:
        """``kill``, and closes the pipes; only for the thread that uses the child."""
        self.kill()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()


class Children:
    """A pool of verifier children, started when they are first needed.

    Args:
        num_workers: Jobs at once; more callers wait.
        timeout_s: CPU seconds per job.
        max_memory_mb: Address space of a child.
    """

    def __init__(self, num_workers: int, timeout_s: float, max_memory_mb: int) -> None:
        self._timeout_s, self._memory_mb = timeout_s, max_memory_mb
        self._slots = threading.BoundedSemaphore(num_workers)
        self._lock = threading.Lock()
        self._idle: list[_Child] = []
        self._all: set[_Child] = set()
        self._closed = False

    def ask(self, job: Mapping[str, str]) -> Reply:
        """What a child says to a job; blocks until one is free and has replied.

        A child that is killed from outside while it works gets its job repeated once.

        Raises:
            ChildrenDown: No child could do it.
        """
        with self._slots:
            ending = 0
            for _ in range(_ATTEMPTS):
                child = self._take()
                try:
                    reply = child.ask(job, self._timeout_s * _WALL_FACTOR)
                except _Gone as gone:
                    self._drop(child)
                    ending = gone.returncode
                    if gone.had_job and -ending in (signal.SIGPROF, signal.SIGXCPU):
                        return Reply(None, f"more than {self._timeout_s:g} s of CPU time")
                    logger.warning("verifier child ended with %d", ending)
                except TimeoutError as problem:
                    self._drop(child)
                    raise ChildrenDown(f"a verifier child got no CPU time: {problem}") from problem
                except BaseException:
                    self._drop(child)
                    raise
                else:
                    if "last" in reply:
                        self._drop(child)
                    else:
                        self._give_back(child)
                    return Reply(reply)
            if -ending in (signal.SIGKILL, signal.SIGTERM, signal.SIGHUP):
                raise ChildrenDown(f"verifier children are killed from outside (signal {-ending})")
            return Reply(None, f"the verifier ended with {ending}")

    def _take(self) -> _Child:
        with self._lock:
            if self._closed:
                raise ChildrenDown("the verifier is closed")
            while self._idle:
                child = self._idle.pop()
                if child.process.poll() is None:
                    return child
                self._all.discard(child)
                child.dispose()
            child = _Child(self._timeout_s, self._memory_mb)
            self._all.add(child)
        try:
            child.wait_ready()
        except BaseException:
            self._drop(child)
            raise
        return child

    def _give_back(self, child: _Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        self._drop(child)

    def _drop(self, child: _Child) -> None:
        with self._lock:
            self._all.discard(child)
        child.dispose()

    def close(self) -> None:
        """Ends all children; callers that wait for one get ChildrenDown. May be called twice."""
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
            children, self._all = self._all, set()
        for child in children:
            child.kill()
        for child in idle:
            child.dispose()
