# SPDX-License-Identifier: Apache-2.0
"""The log of the engines: where vLLM writes, and what it says when an engine does not start."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rlrun.process.temporary import LOGS, TemporaryFolder

LOG_NAME = "vllm.log"
CONFIG_NAME = "vllm_logging.json"

_EXCEPTION = re.compile(r"(?:\w+\.)*([A-Z]\w*(?:Error|Exception|Interrupt|Exit)): (.+)")
_GENERIC = ("Engine core initialization failed", "WorkerProc initialization failed", "cancelled")
"""Errors of a process that only tell that another one has failed."""

_environment = threading.Lock()


class EngineLog:
    """A file that vLLM's loggers and its processes write to.

    Attributes:
        path: The file.
        environment: Variables by which processes that are started find it.
    """

    def __init__(self, folder: Path | None) -> None:
        """Begins, or goes on with, the log in a folder; None for a temporary one."""
        self._temporary: TemporaryFolder | None = None
        if folder is None:
            self._temporary = TemporaryFolder(LOGS)
            folder = self._temporary.path
        folder = folder.absolute()
        self.path = folder / LOG_NAME
        self.path.touch()
        config = folder / CONFIG_NAME
        config.write_text(json.dumps(_logging_config(self.path), indent=1), encoding="utf-8")
        self.environment = {
            "VLLM_LOGGING_CONFIG_PATH": str(config),
            "RLRUN_ENGINE_LOG": str(self.path),
            "RLRUN_DRIVER": str(os.getpid()),
        }

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Sends to the log what this process and those it starts meanwhile print.

        Their logging is set up, and their output moved, only after their first imports.
        """
        sys.stdout.flush()
        sys.stderr.flush()
        saved = [os.dup(1), os.dup(2)]
        with self.path.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            for fd, copy in zip((1, 2), saved, strict=True):
                os.dup2(copy, fd)
                os.close(copy)

    def remove_temporary(self) -> None:
        """Removes the folder, if it is a temporary one. May be called twice."""
        if self._temporary is not None:
            self._temporary.remove()

    def size(self) -> int:
        """Bytes so far."""
        return self.path.stat().st_size

    def root_cause(self, start: int) -> str | None:
        """The first error of which a trace was logged behind byte ``start``, or None."""
        with self.path.open("rb") as file:
            file.seek(start)
            return first_error(file.read().decode(errors="replace"))


def first_error(text: str) -> str | None:
    """The exception at the end of the first trace in a log that does not point to another one."""
    for line in text.splitlines():
        found = _EXCEPTION.search(line)
        if found is not None and not any(words in line for words in _GENERIC):
            return f"{found[1]}: {found[2].strip()}"
    return None


def _logging_config(path: Path) -> dict[str, object]:
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"plain": {"format": "%(asctime)s %(process)d %(levelname)s %(message)s"}},
        "handlers": {
            "file": {
                "class": "logging.FileHandler",
                "filename": str(path),
                "formatter": "plain",
                "encoding": "utf-8",
            }
        },
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }


@contextmanager
def environment(variables: dict[str, str]) -> Iterator[None]:
    """Sets environment variables for processes that are started meanwhile, by one thread at a time.

    Of two that overlapped, the second would put back what the first had set.
    """
    with _environment:
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    os.environ.pop(name, None)
                else:
                    os.environ[name] = value
