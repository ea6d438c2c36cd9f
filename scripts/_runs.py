# SPDX-License-Identifier: Apache-2.0
"""Commands of rlrun in processes of their own, and what their run directories and processes say.

A server imports everything once and forks for each command, so that a command starts in no time.
What is forked dies with the server, and that with the script, whatever ends it.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from rlrun.run_dir.records import read_trained

ROOT = Path(__file__).resolve().parent.parent
PRELOAD = ["rlrun.assemble", "rlrun.preflight", "transformers.models.qwen3.modeling_qwen3"]
PR_SET_PDEATHSIG = 1

LAST_LINES = 2**18
"""Bytes in which a whole line of metrics.jsonl is certainly found."""

FORKS = multiprocessing.get_context("forkserver")
FORKS.set_forkserver_preload(PRELOAD)

UNVALIDATED = (
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
    "num_threads=1",
)
"""Flags of a run that does nothing but train and save."""

Before = Callable[[], None]
"""What is done in the process of a command before it begins; can be pickled."""


class Command:
    """A command of rlrun that runs, or ran.

    Args:
        arguments: As they are typed behind ``rlrun``.
        output: File for everything that it prints; appended to.
        variables: Of the environment, beside those of this process.
        before: What provokes a fault in the process itself.
    """

    def __init__(
        self,
        *arguments: str,
        output: Path,
        variables: Mapping[str, str] | None = None,
        before: Before | None = None,
    ) -> None:
        self.arguments, self.output = arguments, output
        paths = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
        if str(ROOT) not in os.environ.get("PYTHONPATH", "").split(os.pathsep):
            # Before the first one: the server looks there for what it imports.
            os.environ["PYTHONPATH"] = os.pathsep.join(paths)
        self._process = FORKS.Process(
            target=_child, args=(arguments, str(output), dict(variables or {}), before)
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Of the process."""
        assert self._process.pid is not None, "it was started"
        return self._process.pid

    @property
    def exit_code(self) -> int | None:
        """None while it runs; negative if a signal ended it."""
        return self._process.exitcode

    def wait(self, timeout_s: float) -> int:
        """The exit code.

        Raises:
            TimeoutError: It did not end; it is killed.
        """
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            self.kill()
            what = f"rlrun {' '.join(self.arguments)} did not end within {timeout_s:g} s"
            raise TimeoutError(what)
        return code

    def kill(self) -> None:
        """Ends it at once, if it runs."""
        self._process.kill()
        self._process.join()

    def text(self) -> str:
        """What was printed so far."""
        return self.output.read_text(errors="replace") if self.output.exists() else ""


def finish(*arguments: str, output: Path, timeout_s: float) -> str:
    """What a command prints that must succeed.

    Raises:
        RuntimeError: It does not.
    """
    command = Command(*arguments, output=output)
    code = command.wait(timeout_s)
    if code != 0:
        raise RuntimeError(f"rlrun {' '.join(arguments)} ended with {code}:\n{command.text()}")
    return command.text()


def _child(
    arguments: tuple[str, ...], output: str, variables: dict[str, str], before: Before | None
) -> None:
    """Runs in the process of the command."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    os.environ.update(variables)
    if before is not None:
        before()
    sys.argv = ["rlrun", *arguments]
    from rlrun.cli import main

    main()


# --- run directories ------------------------------------------------------------------------------


def logged_steps(run_dir: Path) -> int:
    """The last step in metrics.jsonl; 0 without one."""
    path = run_dir / "metrics.jsonl"
    if not path.exists():
        return 0
    with path.open("rb") as file:
        # Of a long file only the end, which may begin in the midst of a line.
        begin = max(0, path.stat().st_size - LAST_LINES)
        file.seek(begin)
        lines = file.read().splitlines(keepends=True)[begin > 0 :]
    whole = [line for line in lines if line.endswith(b"\n")]
    return int(json.loads(whole[-1])["step"]) if whole else 0


def saving(run_dir: Path) -> bool:
    """Whether a checkpoint is half written."""
    return any((run_dir / "checkpoints").glob(".step_*.saving.tmp"))


def saved_folders(run_dir: Path) -> list[Path]:
    """Its checkpoints, the newest last."""
    return sorted((run_dir / "checkpoints").glob("step_*"))


def trained(run_dir: Path) -> Counter[str]:
    """How many samples of each group were trained."""
    files = sorted((run_dir / "trained").glob("step_*.jsonl"))
    return Counter(line["group_id"] for path in files for line in read_trained(path))


# --- processes ------------------------------------------------------------------------------------


def descendants(pid: int) -> dict[int, bytes]:
    """Command lines of all processes below one, by their ids, in the order of these."""
    parents: dict[int, int] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
        except OSError:
            continue
        parents[int(folder.name)] = int(fields[1])
    found: list[int] = []
    new = [pid]
    while new:
        new = [child for child, parent in parents.items() if parent in new]
        found += new
    return {child: command_line(child) for child in sorted(found)}


def command_line(pid: int) -> bytes:
    """What a process was started with, or calls itself; empty if it is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that waits for its parent to take note does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def left_after(pids: Iterable[int], seconds: float) -> list[int]:
    """Those of the processes that still run after so long; returns once there is none."""
    deadline = time.monotonic() + seconds
    while left := [pid for pid in pids if is_alive(pid)]:
        if time.monotonic() > deadline:
            return left
        time.sleep(0.05)
    return []


def resident_bytes(pid: int) -> int:
    """What a process has in memory, VmRSS; 0 if it is gone."""
    return _status_bytes(pid, "VmRSS:")


def peak_bytes(pid: int) -> int:
    """What it had at most, VmHWM; 0 if it is gone."""
    return _status_bytes(pid, "VmHWM:")


def _status_bytes(pid: int, name: str) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return sum(1024 * int(line.split()[1]) for line in lines if line.startswith(name))
