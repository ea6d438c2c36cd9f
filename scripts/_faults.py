# SPDX-License-Identifier: Apache-2.0
"""Faults for runs: processes killed or stopped, a full disk, a clock that jumps, and more."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import resource
import runpy
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from _gym_agent import AGENT
from _proxy import Mode, Proxy
from _runs import ROOT, Command, command_line, descendants, logged_steps, saved_folders

if TYPE_CHECKING:
    from rlrun.batch import Sample
    from rlrun.learner.learner import Learner

CLOCK = ROOT / "scripts" / "clock"
POLL_S = 0.005

NAMES = {
    "generator": (b"rlrun.generation.process_child", b"EngineCore"),
    "verifier": (b"rlrun.env.answers.worker",),
}
"""Parts of the command lines of processes below a run, by role."""

LOGGED = {
    "generator": r"engine \d+ of \d+: pid (\d+)",
    "learner": r"learner rank \d+ of \d+: pid (\d+)",
}
"""How log.txt names the processes of roles that Ray runs."""


class Victim:
    """A run that faults are done to.

    Args:
        command: Its command of the moment; replaced by who resumes it.
        run_dir: Its folder.
        agent: Its environment's process, if that is not below it.
        limit_s: For how long a moment or a process is waited for.
    """

    def __init__(
        self, command: Command, run_dir: Path, agent: Agent | None, limit_s: float
    ) -> None:
        self.command, self.run_dir, self.agent = command, run_dir, agent
        self.limit_s = limit_s

    @property
    def runs(self) -> bool:
        """Whether the command has not ended."""
        return self.command.exit_code is None

    def wait_for(self, step: int, delay_s: float, checkpoints: int = 0) -> bool:
        """Whether a step, and so many checkpoints, came before the end; and some more time.

        Raises:
            TimeoutError: Neither comes.
        """
        for _ in self._polls(f"step {step}"):
            if logged_steps(self.run_dir) >= step and (
                len(saved_folders(self.run_dir)) >= checkpoints
            ):
                time.sleep(delay_s)
                return self.runs
        return False

    def find(self, role: str, rng: random.Random) -> int | None:
        """A process of a role, as soon as there is one; None if the run ends before.

        Raises:
            TimeoutError: Neither comes.
        """
        for _ in self._polls(f"a process of the {role}"):
            if found := self.processes(role):
                return rng.choice(found)
        return None

    def _polls(self, what: str) -> Iterator[None]:
        deadline = time.monotonic() + self.limit_s
        while self.runs:
            yield
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} did not come within {self.limit_s:g} s")
            time.sleep(POLL_S)

    def processes(self, role: str) -> list[int]:
        """Processes that have a role now, by their ids."""
        if role == "driver":
            return [self.command.pid]
        if role == "environment" and self.agent is not None:
            return [self.agent.pid]
        below = descendants(self.command.pid)
        if role == "environment":
            return [pid for pid in below if b"\0NEMO_GYM_CONFIG_PATH=" in _environ(pid)]
        log = self.run_dir / "log.txt"
        if role in LOGGED and log.exists():
            told = map(int, re.findall(LOGGED[role], log.read_text(errors="replace")))
            if found := sorted({pid for pid in told if pid in below}):
                return found
        names = NAMES.get(role, ())
        return [pid for pid, line in below.items() if any(name in line for name in names)]


def _environ(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def kill(pid: int) -> None:
    """Ends a process at once, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def terminate(pid: int) -> None:
    """Asks a process to end, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)


def stop(pid: int, seconds: float) -> None:
    """Stops a process for a while, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        try:
            time.sleep(seconds)
        finally:
            os.kill(pid, signal.SIGCONT)


def limit(pid: int, kind: int, most: int) -> None:
    """Sets a resource limit of another process, if it is there."""
    with contextlib.suppress(ProcessLookupError):
        resource.prlimit(pid, kind, (most, resource.prlimit(pid, kind)[1]))


# --- disks and files ------------------------------------------------------------------------------


@contextlib.contextmanager
def small_disk(folder: Path, size: int) -> Iterator[bool]:
    """Mounts a disk of so many bytes in memory on a folder; says whether that is allowed here."""
    folder.mkdir(exist_ok=True)
    asked = ("mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder))
    mounted = os.geteuid() == 0 and subprocess.run(asked, capture_output=True).returncode == 0
    try:
        yield mounted
    finally:
        if mounted:
            subprocess.run(("umount", "-l", str(folder)), check=True)


def enlarge_disk(folder: Path, size: int) -> None:
    """Gives a ``small_disk`` more room."""
    asked = ("mount", "-o", f"remount,size={size}", str(folder))
    subprocess.run(asked, check=True, capture_output=True)


def damage(folder: Path, rng: random.Random) -> str:
    """Cuts a file of a checkpoint, or flips one bit of it; what was done."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = rng.choice(files)
    content = bytearray(path.read_bytes())
    place = rng.randrange(len(content))
    name = path.relative_to(folder.parent)
    if rng.random() < 0.5:
        path.write_bytes(content[:place])
        return f"{name} cut to {place} of {len(content)} bytes"
    content[place] ^= 1 << rng.randrange(8)
    path.write_bytes(content)
    return f"a bit of byte {place} of {name} flipped"


# --- inside of the process of a command -----------------------------------------------------------


def jump_clock() -> None:
    """Lets the clock of this process jump, as the environment says."""
    runpy.run_path(str(CLOCK / "sitecustomize.py"))


def clock_variables(jumps: Sequence[tuple[float, float]]) -> dict[str, str]:
    """What lets clocks of a command and of all below it jump.

    Args:
        jumps: Seconds from now, and by how much.
    """
    now = time.monotonic()
    paths = [str(CLOCK), str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "RLRUN_CLOCK_JUMPS": json.dumps([[now + after, seconds] for after, seconds in jumps]),
        "PYTHONPATH": os.pathsep.join(paths),
    }


def poison_gradient(step: int) -> None:
    """Makes a gradient of the first update from ``step`` on that has one NaN."""
    from rlrun.learner.learner import Learner

    update = Learner.update

    def poisoned(self: Learner, minibatches: list[list[Sample]], at: int) -> dict[str, float]:
        parameter = next(p for p in self.model.parameters() if p.requires_grad)
        hook: Any = None
        if at >= step:
            hook = parameter.register_hook(lambda gradient: gradient * float("nan"))
        try:
            return update(self, minibatches, at)
        finally:
            if hook is not None:
                hook.remove()

    Learner.update = poisoned  # type: ignore[method-assign, assignment]  # the fault that is provoked


def poison_weights(step: int) -> None:
    """Makes a weight NaN after the updates from ``step`` on."""
    from rlrun.learner.learner import Learner

    update = Learner.update

    def poisoned(self: Learner, minibatches: list[list[Sample]], at: int) -> dict[str, float]:
        metrics = update(self, minibatches, at)
        if at >= step:
            next(p for p in self.model.parameters() if p.requires_grad).data[0] = float("nan")
        return metrics

    Learner.update = poisoned  # type: ignore[method-assign, assignment]  # the fault that is provoked


# --- an environment that is not the run's ---------------------------------------------------------


class Agent:
    """The small agent behind a proxy, which may be ended and started again.

    Args:
        run_dir: Of the run whose policy it asks.
        log: What it prints.

    Attributes:
        proxy: What the run connects to.
    """

    def __init__(self, run_dir: Path, log: Path) -> None:
        self._address, self._log = run_dir / "http_server.json", log
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port: int = free.getsockname()[1]
        self.proxy = Proxy(self._port)
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def pid(self) -> int:
        """Of the agent."""
        assert self._process is not None, "it was started"
        return self._process.pid

    def flags(self) -> tuple[str, ...]:
        """What a run is told of it."""
        url = f"http://127.0.0.1:{self.proxy.port}"
        return "env.config_paths=[]", f"env.agents={{{AGENT}: '{url}'}}"

    def start(self) -> None:
        """Starts it, in place of one that has ended."""
        self.end()
        program = ROOT / "scripts" / "_gym_agent.py"
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(self._port), str(self._address)],
                stdout=log,
                stderr=log,
            )

    def end(self) -> None:
        """Ends it, if it runs."""
        if self._process is not None:
            kill(self._process.pid)
            self._process.wait()

    def close(self) -> None:
        """Ends it and its proxy."""
        self.end()
        self.proxy.close()

    def disturb(self, mode: Mode, seconds: float) -> None:
        """Makes its connections bad for a while."""
        self.proxy.mode = mode
        time.sleep(seconds)
        self.proxy.mode = Mode.THROUGH


def name_of(pid: int) -> str:
    """A process in words, for what is told of faults."""
    words = command_line(pid).replace(b"\0", b" ").decode(errors="replace").split()
    return f"{pid} ({' '.join(words[-2:])[-40:]})"
