# SPDX-License-Identifier: Apache-2.0
"""A small process between a run and its servers, which ends them when the run is gone.

A program of its own, of the standard library alone. The first line of standard input is a JSON list
of servers ("name", "argv", "cwd", "env", "log"); the end of standard input, which comes however the
run dies, means that all is over. Standard output says which servers ended by themselves. Servers
are told to die with this process, and whatever they leave behind becomes its children.
"""

from __future__ import annotations

import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
POLL_S, GRACE_S = 0.2, 2.0
MAX_LOG_BYTES = 64 * 2**20


def prctl(option: int, value: int) -> None:
    """Linux only; elsewhere the end of standard input has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def start(server: dict[str, Any]) -> subprocess.Popen[bytes]:
    """Starts a server at the head of a process group of its own."""
    with open(server["log"], "ab") as log:
        return subprocess.Popen(
            server["argv"],
            cwd=server["cwd"],
            env=server["env"],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            # This process has one thread, and the function only makes system calls.
            preexec_fn=set_up_server,
        )


def set_up_server() -> None:
    """In the new process: it dies with this one, and is not deaf to SIGINT as this one is."""
    prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def descendants(pid: int) -> list[int]:
    """Processes below one, as the kernel knows them now."""
    found = []
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return []
    for task in tasks:
        try:
            children = (task / "children").read_text().split()
        except OSError:
            continue
        for child in map(int, children):
            found += [child, *descendants(child)]
    return found


def bound(logs: list[Path]) -> None:
    """Moves what a log holds to NAME.1 once it is large, where it replaces what was there.

    The server goes on writing to the same file, at its end. What it writes between the copy and the
    cut is lost. A log that cannot be shortened is said once, and left out from then on.
    """
    for log in list(logs):
        try:
            if log.stat().st_size > MAX_LOG_BYTES:
                shutil.copyfile(log, log.with_name(f"{log.name}.1"))
                os.truncate(log, 0)
        except OSError as error:
            logs.remove(log)
            sys.stderr.write(f"{log} cannot be shortened: {error.strerror}\n")


def send(pids: list[int], number: signal.Signals, *, groups: bool = False) -> None:
    """A signal to processes, or to their groups, those that are gone left out."""
    for pid in pids:
        try:
            (os.killpg if groups else os.kill)(pid, number)
        except (ProcessLookupError, PermissionError):
            continue


def end(servers: dict[str, subprocess.Popen[bytes]]) -> None:
    """Ends servers and everything below them, politely for a moment.

    By SIGINT first: a web server in Python closes on SIGTERM too, but then lets itself be killed by
    it, and the temporary folders of its libraries stay.
    """
    groups = [process.pid for process in servers.values()]
    for number in (signal.SIGINT, signal.SIGTERM):
        send(groups, number, groups=True)
        deadline = time.monotonic() + GRACE_S
        while time.monotonic() < deadline and any(p.poll() is None for p in servers.values()):
            time.sleep(0.05)
    send(groups, signal.SIGKILL, groups=True)
    while left := descendants(os.getpid()):
        send(left, signal.SIGKILL)
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            break


def main() -> None:
    """Starts, watches, ends."""
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    # Ctrl-C is for the run, which then closes its end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    over = False

    def stop(number: int, frame: object) -> None:
        nonlocal over
        over = True

    signal.signal(signal.SIGTERM, stop)
    wanted = json.loads(sys.stdin.readline())
    servers = {server["name"]: start(server) for server in wanted}
    logs = [Path(server["log"]) for server in wanted]
    told: set[str] = set()
    try:
        while not over:
            readable, _, _ = select.select([sys.stdin], [], [], POLL_S)
            if readable and not os.read(sys.stdin.fileno(), 4096):
                break
            bound(logs)
            for name, process in servers.items():
                if name not in told and process.poll() is not None:
                    told.add(name)
                    line = json.dumps({"name": name, "code": process.returncode})
                    sys.stdout.write(line + "\n")
                    sys.stdout.flush()
    except OSError:
        # Nobody reads any more.
        over = True
    finally:
        end(servers)


if __name__ == "__main__":
    main()
