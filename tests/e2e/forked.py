# SPDX-License-Identifier: Apache-2.0
"""Commands in processes of their own that do not have to import torch again.

A server imports it once and forks for each command: arguments, output and exit code are those of
the command line, at a fraction of its start-up time. So is the process that an asynchronous run
generates with (standby.py), unless a test wants the one that Python starts. Nor do they wait for
the disk, a hundred times in a short run.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.conftest import Command, environment
from tests.e2e import held
from tests.e2e.standby import stand_by

PRELOAD = [
    *("rlrun.assemble", "rlrun.preflight", "transformers.models.qwen3.modeling_qwen3"),
    *("rlrun.evaluation.command", "rlrun.generation.process_child", "tests.e2e.warm"),
]

FORKS = multiprocessing.get_context("forkserver")
"""Its processes start in no time once ``start_server`` was called."""


def forked(
    *arguments: str, cwd: Path | None = None, timeout: float = 500, own_python: bool = False
) -> Command:
    """What ``rlrun`` with these arguments does.

    Args:
        arguments: As they are typed.
        cwd: The current folder of the command.
        timeout: Seconds.
        own_python: The process that it generates with is not forked, and the disk is waited for.
    """
    start_server()
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        given = (arguments, cwd or Path.cwd(), out, err, own_python)
        child = FORKS.Process(target=_command, args=given)
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            raise TimeoutError(f"rlrun {' '.join(arguments)}: {out.read_text()}{err.read_text()}")
        return Command(child.exitcode, out.read_text(), err.read_text())


class Started:
    """A command that runs, with what the tests use of subprocess.Popen; arguments as above.

    A run waits after each of the steps ``held_after``, within the next one, until ``go_on``.
    """

    def __init__(
        self, *arguments: str, own_python: bool = False, held_after: Sequence[int] = ()
    ) -> None:
        start_server()
        self._folder = tempfile.TemporaryDirectory()
        self._out = Path(self._folder.name) / "out"
        self._out.touch()
        given = (arguments, Path.cwd(), self._out, self._out, own_python, held_after)
        self._process = FORKS.Process(target=_command, args=given)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def is_held(self, step: int) -> bool:
        """Whether it waits after a step, or has done so."""
        return held.held(Path(self._folder.name), step).exists()

    def go_on(self, step: int) -> None:
        """Lets it do what comes after the step."""
        held.go_on(Path(self._folder.name), step).touch()

    def output(self) -> str:
        """What it has written so far, to standard output and error."""
        return self._out.read_text()

    def send_signal(self, number: int) -> None:
        with suppress(ProcessLookupError):  # it has ended meanwhile: nothing, as Popen does
            os.kill(self.pid, number)

    def communicate(self, timeout: float | None = None) -> tuple[str, None]:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise TimeoutError(f"the command goes on: {self.output()}")
        return self.output(), None


def start_server() -> None:
    """Starts it, unless it runs, such that it can import what it is to preload."""
    before = os.environ.get("PYTHONPATH")
    os.environ.update(environment())
    FORKS.set_forkserver_preload(PRELOAD)
    multiprocessing.forkserver.ensure_running()
    if before is None:
        del os.environ["PYTHONPATH"]
    else:
        os.environ["PYTHONPATH"] = before


def _command(
    arguments: tuple[str, ...],
    cwd: Path,
    out: Path,
    err: Path,
    own_python: bool,
    held_after: Sequence[int] = (),
) -> None:
    """Runs in the child."""
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.chdir(cwd)
    os.environ.update(environment())
    if not own_python:
        # For a machine that stops, which none does here; a killed process loses nothing.
        os.fsync = os.fstat  # type: ignore[assignment]  # which refuses what is not open, too
        if arguments[0] in ("train", "resume"):
            stand_by()
    if held_after:
        held.hold_after(held_after, out.parent)
    sys.argv = ["rlrun", *arguments]
    from rlrun.cli import main

    main()
