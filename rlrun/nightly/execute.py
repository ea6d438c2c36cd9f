# SPDX-License-Identifier: Apache-2.0
"""Brings one run to its end: started, or resumed where it was interrupted, under a time limit."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import rlrun
from rlrun.config.flags import quoted
from rlrun.console.counted import counted
from rlrun.errors import Interrupted, StorageError
from rlrun.nightly.plan import Case
from rlrun.nightly.supervisor import TIMED_OUT
from rlrun.process.signals import StopSignal
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.status import RunState

GRACE_S = 120.0
"""For a run that is told to end: it saves after the step in progress."""

MAX_INTERRUPTIONS = 3
"""Times that something else may end a run before the nightly gives it up."""

_INTERRUPTED = (130, 143, 137)
_FREE_S = 180.0
"""How long a run directory may still be held by a process of a killed nightly."""
_POLL_S = 0.2
_ROOT = Path(rlrun.__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Ending:
    """How the run of a seed ended for good.

    Attributes:
        name: The full name of the run.
        seed: Its seed.
        exit_code: Of its last process; TIMED_OUT if the limit ended it.
        reason: "" if it is done.
        seconds: Of all its processes that this nightly waited for.
        resumed: How often it was resumed.
    """

    name: str
    seed: int
    exit_code: int
    reason: str
    seconds: float
    resumed: int

    @property
    def done(self) -> bool:
        """Whether it trained all that it was to train."""
        return not self.reason

    def to_json(self) -> dict[str, Any]:
        """A JSON value."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class Places:
    """Where things of a nightly are.

    Attributes:
        root: Its folder.
        config_dir: A folder of further recipes, for the runs.
    """

    root: Path
    config_dir: Path | None

    def run_dir(self, name: str, seed: int) -> Path:
        """The run directory of a seed."""
        return self.root / "runs" / name / f"seed-{seed}"

    def log(self, name: str, seed: int) -> Path:
        """What its processes said."""
        return self.root / "logs" / f"{name}-seed-{seed}.txt"


def execute(case: Case, seed: int, places: Places, stop: StopSignal) -> Ending:
    """Runs a seed until it is done, fails or is out of time.

    Raises:
        Interrupted: The nightly itself is to end; the run has saved and can be resumed.
        StorageError: A file of the nightly cannot be written.
    """
    name = case.spec.full_name
    run_dir = places.run_dir(name, seed)
    left = case.spec.minutes * 60
    seconds, resumed, interruptions, step = 0.0, 0, 0, 0
    code = 0
    while not _is_done(run_dir):
        command = _next_command(case, seed, places)
        resumed += command[0] == "resume"
        started = time.monotonic()
        code = _supervised(command, left - seconds, places.log(name, seed), stop)
        seconds += time.monotonic() - started
        if stop.signal_number is not None:
            raise Interrupted(stop.signal_number)
        if code == TIMED_OUT or seconds >= left:
            reason = f"not done within {counted(case.spec.minutes, 'minute', form='g')}"
            return Ending(name, seed, TIMED_OUT, reason, seconds, resumed)
        interruptions += code in _INTERRUPTED
        before, step = step, _step(run_dir)
        if code == 0 and (_is_done(run_dir) or step > before):
            continue  # done, or checkpoint_must_save_by was reached
        if code in _INTERRUPTED and interruptions <= MAX_INTERRUPTIONS:
            continue
        reason = f"ended with code {code}: {_last_words(places.log(name, seed))}"
        return Ending(name, seed, code or 1, reason, seconds, resumed)
    return Ending(name, seed, 0, "", seconds, resumed)


def _next_command(case: Case, seed: int, places: Places) -> list[str]:
    """``rlrun resume`` for a run that has begun, else ``rlrun train``."""
    run_dir = places.run_dir(case.spec.full_name, seed)
    if (run_dir / "config.yaml").is_file():
        _wait_until_free(run_dir)
        return ["resume", str(run_dir)]
    if run_dir.exists():
        shutil.rmtree(run_dir)  # killed before it wrote its settings
    own = [] if places.config_dir is None else ["--config-dir", str(places.config_dir.absolute())]
    overrides = [*case.spec.overrides, f"grpo.seed={seed}", f"run_dir={quoted(str(run_dir))}"]
    return ["train", *own, f"+recipe={case.recipe.absolute()}", *overrides]


def _wait_until_free(run_dir: Path) -> None:
    """The process of a killed nightly saves before it ends.

    Raises:
        StorageError: It does not end.
    """
    deadline = time.monotonic() + _FREE_S
    while RunDir.read(run_dir).in_use():
        if time.monotonic() > deadline:
            what = "is still being trained by a process of an earlier nightly"
            raise StorageError(str(run_dir), what, "End that process")
        time.sleep(_POLL_S)


def _supervised(command: list[str], seconds: float, log: Path, stop: StopSignal) -> int:
    """The exit code of an rlrun command in processes of its own."""
    log.parent.mkdir(parents=True, exist_ok=True)
    path = os.pathsep.join(filter(None, (str(_ROOT), os.environ.get("PYTHONPATH"))))
    limits = [str(os.getpid()), str(max(seconds, 1.0)), str(GRACE_S)]
    supervisor = [sys.executable, "-m", "rlrun.nightly.supervisor", *limits]
    with open(log, "ab") as file:
        file.write(f"$ rlrun {' '.join(command)}\n".encode())
        file.flush()
        process = subprocess.Popen(
            [*supervisor, sys.executable, "-m", "rlrun", *command],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path},
        )
        told = False
        while True:
            try:
                return process.wait(_POLL_S)
            except subprocess.TimeoutExpired:
                if stop.signal_number is not None and not told:
                    told = True
                    process.terminate()


def _is_done(run_dir: Path) -> bool:
    if not (run_dir / "config.yaml").is_file():
        return False
    status = RunDir.read(run_dir).read_status()
    return status is not None and status.state is RunState.DONE


def _step(run_dir: Path) -> int:
    """The last finished step; 0 for a run that has not begun."""
    if not (run_dir / "config.yaml").is_file():
        return 0
    status = RunDir.read(run_dir).read_status()
    return 0 if status is None else status.step


def _last_words(log: Path) -> str:
    """The last error in the log, or else its last line."""
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or ["it said nothing"])[-1][:500]
