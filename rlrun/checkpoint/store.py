# SPDX-License-Identifier: Apache-2.0
"""The store of checkpoints: each complete or absent, and which of them are kept.

A checkpoint is a folder ``step_000010``. It is written under a name that starts with a dot, sealed
with a manifest, and renamed; a reader sees only what is complete. What is in the folder is the
caller's business; training_state.py has the forms that values may take there.
"""

from __future__ import annotations

import logging
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.atomic import fsync_dir, storage_error
from rlrun.checkpoint.manifest import Damaged, read_manifest, seal, verify
from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.metrics.registry import why_never_logged

if TYPE_CHECKING:
    from rlrun.config.schema import Checkpointing

_log = logging.getLogger(__name__)

_NAME = re.compile(r"step_([0-9]+)")
_REPLACED = re.compile(r"\.(step_([0-9]+))\.replaced")


@dataclass(frozen=True, slots=True)
class LoadedCheckpoint:
    """A checkpoint whose files were compared with its manifest.

    Attributes:
        step: The step after which it was saved.
        path: Its folder.
        metrics: The metrics it was saved with; None for a value that was not finite.
    """

    step: int
    path: Path
    metrics: Mapping[str, float | None]


def saved_steps(root: Path) -> list[int]:
    """Steps that have a checkpoint in the folder, ascending. Other names there are ignored.

    Raises:
        StorageError: The folder cannot be read (one that does not exist holds no checkpoint).
    """
    return sorted(saved_folders(root))


def load_checkpoint(root: Path, step: int | None = None) -> LoadedCheckpoint:
    """The checkpoint of a step, or the newest one that is whole.

    A damaged one is passed over with a warning if no step was asked for.

    Raises:
        StorageError: There is none, or none that is whole.
    """
    folders = saved_folders(root)
    if step is not None and step not in folders:
        have = f"it has {', '.join(map(str, sorted(folders)))}" if folders else "it has none"
        raise StorageError(str(root), f"holds no checkpoint of step {step}; {have}")
    if not folders:
        raise StorageError(str(root), "holds no checkpoint", "Start a new run")
    wanted = sorted(folders, reverse=True) if step is None else [step]
    damages: list[str] = []
    for candidate in wanted:
        folder = folders[candidate]
        try:
            manifest = verify(folder)
            if manifest.step != candidate:
                name = f"step_{manifest.step:06d}"
                raise Damaged(f"it was saved as step {manifest.step}; its folder was {name}")
            return LoadedCheckpoint(candidate, folder, manifest.metrics)
        except (Damaged, OSError) as error:
            damages.append(f"step {candidate}: {error}")
            if step is None:
                _log.warning("checkpoint %s is damaged: %s. It is passed over.", folder, error)
    raise StorageError(
        str(root),
        f"no checkpoint is whole ({'; '.join(damages)})" if step is None else damages[0],
        "Restore the folder from a backup, or start a new run",
    )


class CheckpointStore:
    """Saves checkpoints and keeps the newest and the best. For the process that trains only.

    Kept are the newest, the one just saved, and the ``keep_top_k`` best by the metric (null: all;
    0: none). One without a value of the metric ranks below all others; of equals the newer one is
    better.

    Attributes:
        background_seconds: What the last one that was begun and finished took altogether.
    """

    def __init__(self, root: Path, settings: Checkpointing) -> None:
        """Prepares the folder and removes what a killed process left half-written there.

        Args:
            root: The folder of checkpoints, made if needed.
            settings: What is kept.

        Raises:
            ConfigError: ``settings.metric`` is no metric that a run logs.
            StorageError: The folder cannot be used.
        """
        self._root = root
        self._settings = settings
        self._saved_before = False
        self._pending: Future[float] | None = None
        self.background_seconds = 0.0
        _check_metric(settings.metric)
        try:
            root.mkdir(parents=True, exist_ok=True)
            self._put_back()
        except OSError as error:
            raise storage_error(root, "use for checkpoints", error) from error
        self._remove_leftovers()

    def latest(self) -> int | None:
        """The newest step that has a checkpoint, whole or not."""
        return max(saved_steps(self._root), default=None)

    def load(self, step: int | None = None) -> LoadedCheckpoint:
        """See ``load_checkpoint``."""
        return load_checkpoint(self._root, step)

    def save(self, step: int, write: Callable[[Path], None], metrics: Mapping[str, float]) -> Path:
        """Saves a checkpoint, in place of an earlier one of that step; then removes old ones.

        Args:
            step: The step that was just finished.
            write: Fills the (empty) folder that it is given.
            metrics: What is known about this state, for choosing the best.

        Raises:
            StorageError: It could not be saved; all earlier checkpoints are as they were.
        """
        self.finish()
        with self._temporary(step) as folder:
            write(folder)
            self._complete(folder, step, metrics)
        return self._root / f"step_{step:06d}"

    def begin(
        self, step: int, write: Callable[[Path], Callable[[], None]], metrics: Mapping[str, float]
    ) -> None:
        """As ``save``, but returns while it is being written; ``finish`` says how it went.

        Args:
            step: The step that was just finished.
            write: Begins to fill the (empty) folder that it is given. What it returns waits until
                the folder is filled, and is called in a thread.
            metrics: What is known about this state, for choosing the best.

        Raises:
            StorageError: It could not be begun, or the one before could not be finished.
        """
        self.finish()
        started = time.perf_counter()
        with self._temporary(step) as folder:
            wait = write(folder)

        def go_on() -> float:
            with self._temporary(step, begun=True) as folder:
                wait()
                self._complete(folder, step, metrics)
            return time.perf_counter() - started

        worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self._pending = worker.submit(go_on)
        worker.shutdown(wait=False)

    def finish(self) -> None:
        """Waits for what ``begin`` began.

        Raises:
            StorageError: It could not be saved; all earlier checkpoints are as they were.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            self.background_seconds = pending.result()

    @contextmanager
    def _temporary(self, step: int, *, begun: bool = False) -> Iterator[Path]:
        """The folder under its temporary name; whatever goes wrong leaves nothing of it.

        Args:
            step: Of the checkpoint.
            begun: It is there already.
        """
        name = f"step_{step:06d}"
        temporary = self._root / f".{name}.saving.tmp"
        try:
            if not begun:
                if temporary.exists():
                    shutil.rmtree(temporary)
                temporary.mkdir()
            yield temporary
        except BaseException as error:
            # The first error is the one to be told; what is left behind the next save puts right.
            with suppress(OSError):
                self._put_back()
            shutil.rmtree(temporary, ignore_errors=True)
            if isinstance(error, OSError):
                raise storage_error(self._root / name, "save the checkpoint", error) from error
            raise

    def _complete(self, folder: Path, step: int, metrics: Mapping[str, float]) -> None:
        """Seals and publishes what is written; then removes old ones."""
        seal(folder, step, metrics)
        self._publish(folder, step)
        self._notice_missing_metric(f"step_{step:06d}", metrics)
        self._remove_leftovers()
        self._remove_old(step)

    def _notice_missing_metric(self, name: str, metrics: Mapping[str, float]) -> None:
        """At the first save: a misspelt reward part would otherwise never be noticed."""
        metric, first = self._settings.metric, not self._saved_before
        self._saved_before = True
        if first and metric is not None and metric not in metrics:
            remedy = "Is its name right?"
            if metric.startswith("validation/"):
                remedy = "Let checkpointing.save_period be a multiple of grpo.val_period."
                if any(other.startswith("validation/") for other in metrics):
                    remedy = "The validation of this step has none: did all of its samples fail?"
            _log.warning(
                "checkpoint %s has no value of checkpointing.metric=%s; it ranks below all that "
                "have one. %s",
                name,
                metric,
                remedy,
            )

    def _publish(self, temporary: Path, step: int) -> None:
        final = self._root / f"step_{step:06d}"
        earlier = saved_folders(self._root).get(step)
        if earlier is not None:
            # Two renames, since a folder cannot be replaced by one. Killed in between, _put_back
            # undoes the first.
            earlier.rename(self._root / f".{earlier.name}.replaced")
        temporary.rename(final)
        fsync_dir(self._root)

    def _put_back(self) -> None:
        for path in list(self._root.glob(".step_*.replaced")):
            match = _REPLACED.fullmatch(path.name)
            if match and int(match.group(2)) not in saved_folders(self._root):
                path.rename(self._root / match.group(1))
        fsync_dir(self._root)

    def _remove_leftovers(self) -> None:
        for pattern in (".step_*.replaced", ".step_*.tmp"):
            for path in list(self._root.glob(pattern)):
                self._remove(path)

    def _remove(self, path: Path) -> None:
        """Removes a folder of the store; if that fails, a later save tries again."""
        try:
            if not path.name.endswith(".tmp"):
                # In one go, so that there is never half a checkpoint under a good name.
                temporary = path.with_name(f".{path.name.lstrip('.')}.removing.tmp")
                path = path.rename(temporary)
            shutil.rmtree(path)
        except OSError as error:
            _log.warning("%s cannot be removed (%s); the next save tries again.", path, error)

    def _remove_old(self, just_saved: int) -> None:
        if self._settings.keep_top_k is None:
            return
        folders = saved_folders(self._root)
        ranked = sorted(folders, key=lambda step: (*self._rank(folders[step]), step), reverse=True)
        keep = {max(folders), just_saved, *ranked[: self._settings.keep_top_k]}
        for step in sorted(folders.keys() - keep):
            self._remove(folders[step])

    def _rank(self, folder: Path) -> tuple[bool, float]:
        if self._settings.metric is None:
            return False, 0.0
        try:
            value = read_manifest(folder).metrics.get(self._settings.metric)
        except (Damaged, OSError) as error:
            _log.warning("checkpoint %s is damaged: %s.", folder, error)
            return False, 0.0
        if value is None:
            return False, 0.0
        return True, value if self._settings.higher_is_better else -value


def saved_folders(root: Path) -> dict[int, Path]:
    """The checkpoints in a folder by step, in no order, whole or not.

    Raises:
        StorageError: The folder cannot be read (one that does not exist holds no checkpoint).
    """
    found: dict[int, Path] = {}
    try:
        for path in root.iterdir() if root.exists() else ():
            match = _NAME.fullmatch(path.name)
            if match and path.is_dir():
                step = int(match.group(1))
                # Of two spellings of one step, ours counts.
                if step not in found or path.name == f"step_{step:06d}":
                    found[step] = path
    except OSError as error:
        raise storage_error(root, "list", error) from error
    return found


def _check_metric(name: str | None) -> None:
    what = None if name is None else why_never_logged(name)
    if what is not None:
        remedy = "docs/metrics.md lists all metrics"
        key = "checkpointing.metric"
        raise ConfigError([Problem(key, what, remedy, (key,))])
