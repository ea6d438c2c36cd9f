# SPDX-License-Identifier: Apache-2.0
"""The run directory: who may write there, and what state it is in.

Where each thing lies is in run_paths.py. Moving away what lies beyond a checkpoint is in
supersede.py.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType

from rlrun.atomic import remove_temporaries, storage_error, write_file
from rlrun.errors import RESTORE, StorageError
from rlrun.run_dir.json_line import is_text, parse_object
from rlrun.run_dir.lock import RunLock, is_locked
from rlrun.run_dir.log_file import LogFile
from rlrun.run_dir.paths import RunPaths
from rlrun.run_dir.status import RunState, Status, read_status, write_status
from rlrun.run_dir.supersede import free_name, move_beyond, warn_of_lost_steps

_log = logging.getLogger(__name__)

_LOCK = "run.lock"
_FILES = (
    *("config.yaml", "metrics.jsonl", "timeline.jsonl", "events.jsonl"),
    *("origins.json", "status.json", "log.txt"),
)
_ORIGIN = ("value", "from", "where")


class RunDir(RunPaths):
    """A run directory. Made by ``create``, ``resume`` (both hold the lock) or ``read``."""

    def __init__(self, root: Path, lock: RunLock | None = None) -> None:
        """Names the folder; ``create``, ``resume`` and ``read`` check it as well.

        Args:
            root: The folder.
            lock: Held while this process may write.
        """
        super().__init__(root)
        self._lock = lock
        self._log_file: LogFile | None = None

    # --- opening ----------------------------------------------------------------------------------

    @classmethod
    def create(cls, root: Path) -> RunDir:
        """Makes the folder (parents too) for a new run and locks it.

        Raises:
            StorageError: It holds a run, or other files, or cannot be written.
        """
        root = root.absolute()
        try:
            root.mkdir(parents=True, exist_ok=True)
            _refuse_foreign(root)
            lock = RunLock(root / _LOCK)
        except OSError as error:
            raise storage_error(root, "make the run directory", error) from error
        run_dir = cls(root, lock)
        try:
            # Again, now that nobody else can fill it.
            _refuse_foreign(root)
            for folder in (run_dir.trained, run_dir.validation, run_dir.checkpoints):
                folder.mkdir(exist_ok=True)
        except OSError as error:
            run_dir.close()
            raise storage_error(root, "make the run directory", error) from error
        except StorageError:
            run_dir.close()
            raise
        return run_dir

    @classmethod
    def resume(cls, root: Path) -> RunDir:
        """Locks the folder of a run that is to go on, and removes half-written temporary files.

        Raises:
            StorageError: It holds no run, is in use by another process, or cannot be written.
        """
        run_dir = cls.read(root)
        run_dir._lock = RunLock(run_dir.root / _LOCK)
        try:
            for folder in (run_dir.root, run_dir.trained, run_dir.validation):
                folder.mkdir(exist_ok=True)
                remove_temporaries(folder)
        except OSError as error:
            run_dir.close()
            raise storage_error(run_dir.root, "write to the run directory", error) from error
        except StorageError:
            run_dir.close()
            raise
        return run_dir

    @classmethod
    def read(cls, root: Path) -> RunDir:
        """The folder of a run, to look at only.

        Raises:
            StorageError: It holds no run.
        """
        root = root.absolute()
        try:
            if (root / "config.yaml").is_file():
                refuse_special_files(root)
                return cls(root)
            what = "holds no run (no config.yaml)" if root.is_dir() else "is not a folder"
        except OSError as error:
            raise storage_error(root, "open", error) from error
        raise StorageError(str(root), what, "Give the run_dir of a run that was started")

    def close(self) -> None:
        """Closes log.txt and lets other processes in. May be called twice."""
        if self._log_file is not None:
            self._log_file.detach()
            self._log_file = None
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    def __enter__(self) -> RunDir:
        """Returns itself."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Calls ``close``."""
        self.close()

    # --- content ----------------------------------------------------------------------------------

    def write_config(self, text: str) -> None:
        """Writes config.yaml; a different one from before a resume goes to superseded/ first.

        Raises:
            StorageError: It cannot be written.
        """
        try:
            if self.config.exists() and self.config.read_text(encoding="utf-8") != text:
                self.superseded.mkdir(exist_ok=True)
                # A copy, so that there is a config.yaml at every moment.
                old = free_name(self.superseded / "config.yaml")
                write_file(old, self.config.read_bytes())
        except OSError as error:
            raise storage_error(self.config, "keep the former version", error) from error
        write_file(self.config, text)

    def write_origins(self, record: Mapping[str, Mapping[str, str]]) -> None:
        """Writes origins.json.

        Raises:
            StorageError: It cannot be written.
        """
        write_file(self.origins, json.dumps(record, indent=1) + "\n")

    def read_origins(self) -> dict[str, dict[str, str]]:
        """Of each key "value", "from" and "where"; {} if there is no record.

        Raises:
            StorageError: It cannot be read, or is not what ``write_origins`` writes.
        """
        try:
            raw = self.origins.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise storage_error(self.origins, "read", error) from error
        record = parse_object(str(self.origins), raw)
        for key, origin in record.items():
            texts = [origin.get(name) for name in _ORIGIN] if isinstance(origin, dict) else [None]
            if not all(map(is_text, texts)):
                what = f"is no record of the origin of {key}"
                raise StorageError(str(self.origins), what, f"{RESTORE}, or remove it")
        return record

    def write_status(
        self, state: RunState, *, step: int, reason: str = "", exit_code: int | None = None
    ) -> None:
        """Replaces status.json in one go; fields as in Status.

        Raises:
            StorageError: It cannot be written.
        """
        write_status(self.status, Status(state, reason, step, time.time(), os.getpid(), exit_code))

    def read_status(self) -> Status | None:
        """Content of status.json, or None before it was first written.

        Raises:
            StorageError: It is not what ``write_status`` writes.
        """
        return read_status(self.status)

    def in_use(self) -> bool:
        """Whether a live process trains here. A "running" run that is not in use was killed."""
        return is_locked(self.root / _LOCK)

    def open_log(self) -> None:
        """Appends everything that rlrun's loggers say from INFO on to log.txt, until ``close``.

        Raises:
            StorageError: log.txt cannot be opened.
        """
        self._log_file = LogFile.attach(self.log)

    def supersede(self, after_step: int) -> Path | None:
        """Moves away what lies beyond the checkpoint of ``after_step`` that a resume starts from.

        That is: lines of metrics.jsonl and timeline.jsonl with a higher step and a torn last line,
        and files of trained/ and validation/ and checkpoints of higher steps. Nothing is deleted.
        May be killed at any point and called again. The scheduler's event log is cut by its own
        rules.
        Steps up to the checkpoint that metrics.jsonl lacks at its end are warned about.

        Args:
            after_step: The step of the checkpoint; -1 for a start without one.

        Returns:
            The folder in superseded/ that took it, or None if there was nothing to move.

        Raises:
            StorageError: Something cannot be moved.
        """
        try:
            folder = move_beyond(self.root, after_step)
            warn_of_lost_steps(self.metrics, after_step)
        except OSError as error:
            raise storage_error(self.superseded, "move later steps to", error) from error
        if folder is not None:
            _log.warning("what lay beyond step %d was moved to %s", max(after_step, 0), folder)
        return folder


def _refuse_foreign(root: Path) -> None:
    names = {path.name for path in root.iterdir()} - {_LOCK}
    if "config.yaml" in names or "status.json" in names or "metrics.jsonl" in names:
        raise StorageError(
            str(root),
            "the folder already holds a run, which is never overwritten",
            f"Continue it with `rlrun resume {root}`, or choose another run_dir",
        )
    # What a start that was killed before it had written config.yaml leaves is no obstacle.
    names.discard(".config.yaml.tmp")
    folders = {"trained", "validation", "checkpoints"}
    others = sorted(n for n in names if n not in folders or any((root / n).iterdir()))
    if others:
        raise StorageError(
            str(root),
            f"the folder is not empty (it holds {others[0]!r})",
            "Choose a run_dir that does not exist yet",
        )


def refuse_special_files(root: Path) -> None:
    """Makes sure that reading a run directory, which may come from elsewhere, comes to an end.

    Raises:
        StorageError: There is a pipe or a device where a file belongs.
    """
    for name in (*_FILES, _LOCK):
        path = root / name
        if path.exists() and not path.is_file() and not path.is_dir():
            raise StorageError(str(path), "is no regular file", RESTORE)
