# SPDX-License-Identifier: Apache-2.0
"""Commands in processes of their own that do not have to import torch again.

A server imports it once and forks for each command: arguments, output and exit code are those of
the command line, at a fraction of its start-up time.
"""

from __future__ import annotations

import multiprocessing
import multiprocessing.forkserver
import os
import sys
import tempfile
from pathlib import Path

from tests.conftest import Command, environment

PRELOAD = ["rlrun.assemble", "rlrun.preflight", "transformers.models.qwen3.modeling_qwen3"]

FORKS = multiprocessing.get_context("forkserver")
"""Its processes start in no time once ``start_server`` was called."""


def forked(*arguments: str, cwd: Path | None = None, timeout: float = 240) -> Command:
    """What ``rlrun`` with these arguments does."""
    start_server()
    with tempfile.TemporaryDirectory() as folder:
        out, err = Path(folder) / "out", Path(folder) / "err"
        child = FORKS.Process(target=_command, args=(arguments, cwd or Path.cwd(), out, err))
        child.start()
        child.join(timeout)
        if child.exitcode is None:
            child.kill()
            raise TimeoutError(f"rlrun {' '.join(arguments)}: {out.read_text()}{err.read_text()}")
        return Command(child.exitcode, out.read_text(), err.read_text())


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


def _command(arguments: tuple[str, ...], cwd: Path, out: Path, err: Path) -> None:
    """Runs in the child."""
    for path, number in ((out, 1), (err, 2)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT, 0o600), number)
    os.chdir(cwd)
    os.environ.update(environment())
    sys.argv = ["rlrun", *arguments]
    from rlrun.cli import main

    main()
