# SPDX-License-Identifier: Apache-2.0
"""A process between the nightly and a run that leaves nothing behind, whatever ends it.

``python -m rlrun.nightly.supervisor PARENT SECONDS GRACE COMMAND...`` runs the command in a process
group of its own. After SECONDS it is told to end (SIGTERM: a run saves first) and after GRACE more
it is killed; so it is when this process is told to end, or the nightly that started it is gone.
When the command has ended, whatever it left running is killed, detached sessions included: on Linux
the kernel hands them to this process. It imports nothing but the standard library.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

TIMED_OUT = 124
"""Exit code for a command that did not end within its time."""

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_WATCHED = {signal.SIGTERM, signal.SIGINT, signal.SIGCHLD}


def supervise(parent: int, seconds: float, grace: float, command: list[str]) -> int:
    """Runs the command to its end, or to ours.

    Args:
        parent: The process that started this one.
        seconds: Limit of its time.
        grace: From the request to end until it is killed.
        command: What to run.

    Returns:
        Its exit code, 128 + N if signal N ended it, TIMED_OUT if the limit did.
    """
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
    # Nobody would tell us of the nightly's death otherwise.
    _prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:
        return 128 + signal.SIGTERM

    def in_child() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)

    # This process has one thread, so what runs between fork and exec is safe.
    child = subprocess.Popen(command, process_group=0, preexec_fn=in_child)
    timed_out = _wait(child.pid, seconds, grace)
    with suppress(ProcessLookupError):  # Of its group nobody may be left.
        os.killpg(child.pid, signal.SIGKILL)  # not reaped yet, so the number is still its own
    code = child.wait()
    _end_the_rest()
    if timed_out:
        return TIMED_OUT
    return code if code >= 0 else 128 - code


def _wait(pid: int, seconds: float, grace: float) -> bool:
    """Until the child has ended; whether because of the limit."""
    deadline = time.monotonic() + seconds
    asked, timed_out = False, False
    while os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
        received = signal.sigtimedwait(_WATCHED, max(0.0, deadline - time.monotonic()))
        over = time.monotonic() >= deadline
        told = received is not None and received.si_signo != signal.SIGCHLD
        if asked and (over or told):
            os.kill(pid, signal.SIGKILL)
            deadline = time.monotonic() + grace
        elif over or told:
            asked, timed_out = True, over and not told
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + grace
    return timed_out


def _end_the_rest() -> None:
    """Kills what the command left, generation by generation, until there is nothing."""
    while True:
        for pid in _children():
            with suppress(ProcessLookupError):  # It may have ended by itself.
                os.kill(pid, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return


def _children() -> list[int]:
    """Processes whose parent this one is, which only Linux tells."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # Processes come and go meanwhile.
            # "pid (name) state ppid ...", and a name may hold anything.
            if int(path.read_text().rpartition(")")[2].split()[1]) == os.getpid():
                found.append(int(path.parent.name))
    return found


def _prctl(option: int, value: int) -> None:
    """A request that only Linux knows; elsewhere the process group has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


if __name__ == "__main__":
    sys.exit(supervise(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), sys.argv[4:]))
