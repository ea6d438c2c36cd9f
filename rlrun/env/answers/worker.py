# SPDX-License-Identifier: Apache-2.0
"""Main program of a verifier child: JSON lines in, JSON lines out, one comparison at a time.

A job is {"gold": str, "answer": str}; a reply is {"equal": bool}, {"limit": reason} if the answer
could not be compared, or {"unreadable": reason} if the reference could not; with "last" the child
ends after it. CPU time is limited by
the kernel: a profiling timer counts this process's CPU seconds only, so a busy machine changes
nothing, and its signal ends the process even inside one long C call.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import select
import signal
import sys
from typing import BinaryIO

from rlrun.env.answers.algebra import GoldUnreadable
from rlrun.env.answers.compare import same_text
from rlrun.env.answers.numeric import NumericDecider
from rlrun.env.confine import confine

_PARENT_CHECK_MS = 5_000


def compare(gold: str, answer: str) -> dict[str, object]:
    """The reply to one job."""
    try:
        return {"equal": same_text(gold, answer, NumericDecider())}
    except GoldUnreadable as problem:
        return {"unreadable": f"the reference answer cannot be parsed: {problem}"}
    except MemoryError:
        # What was allocated may not come back; a fresh process is cheap.
        return {"limit": "out of memory", "last": True}
    except Exception as problem:  # noqa: BLE001 - whatever a library raises for an odd answer
        return {"limit": f"{type(problem).__name__}: {problem}"[:300]}


def _next_line(stdin: BinaryIO, parent: int) -> bytes:
    """The next job; empty when the parent has gone, even if another process holds its pipe."""
    poll = select.poll()
    poll.register(stdin, select.POLLIN | select.POLLHUP)
    while not poll.poll(_PARENT_CHECK_MS):
        if os.getppid() != parent:
            return b""
    return stdin.readline()


def main(cpu_seconds: float, memory_mb: int) -> None:
    """Serves jobs until standard input ends."""
    parent = os.getppid()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    limit = memory_mb * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    confine()
    replies = os.fdopen(os.dup(1), "wb", buffering=0)
    replies.write(b'{"ready": true}\n')
    # Libraries may print; from here on only replies may reach the parent.
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    logging.disable()
    while line := _next_line(sys.stdin.buffer, parent):
        job = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        reply = compare(job["gold"], job["answer"])
        signal.setitimer(signal.ITIMER_PROF, 0)
        replies.write(json.dumps(reply).encode() + b"\n")
        if "last" in reply:
            return


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
