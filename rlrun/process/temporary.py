# SPDX-License-Identifier: Apache-2.0
"""Temporary folders that do not outlast the process that made them, whatever ends it.

A folder is somebody's as long as a process holds the lock on a file in it, which the kernel drops
with the process. Whoever makes one first removes those of the same user and machine that are
nobody's: what only processes needed at once, logs after a week, since an error may have named them.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import stat
import tempfile
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from rlrun.errors import ConfigError, Problem
from rlrun.run_dir.lock import RunLock

SCRATCH = "rlrun-run-"
"""How the names of folders begin that are of use to running processes alone."""
LOGS = "rlrun-logs-"
"""Likewise of those that somebody may want to read afterwards."""

OWNER = ".rlrun-owner"
ELSEWHERE = ".rlrun-elsewhere"
"""Lists files and memory outside of a folder that go with it: a line has inode and path."""
KEPT_S = 7 * 24 * 3600.0
"""How long logs stay that nobody removed, from the last line on."""

MAX_SOCKET_PATH = 107
"""Bytes that the path of a socket may have on Linux; elsewhere it is a few less."""
_NAME = len("/rlrun-run-12345678/")


class TemporaryFolder:
    """A folder of this process.

    Attributes:
        path: It.
    """

    def __init__(self, prefix: str, *, parent: Path | None = None) -> None:
        """Makes the folder, and removes what others of its kind left behind.

        Args:
            prefix: SCRATCH, to be removed with this object too, or LOGS.
            parent: Where; None for the folder that the system has for it.
        """
        parent = Path(tempfile.gettempdir()) if parent is None else parent
        remove_abandoned(parent, prefix, KEPT_S if prefix == LOGS else 0.0)
        self.path = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        self._lock = claim(self.path)
        self._remove: Callable[[], object] = _Remover(self.path, self._lock)
        if prefix == SCRATCH:
            # Also at the end of the interpreter, if nobody came to call ``remove``.
            self._remove = weakref.finalize(self, self._remove)

    def remove(self) -> None:
        """Removes it with all that is in it. May be called twice."""
        self._remove()


class _Remover:
    """Holds no folder object, which would then never be forgotten."""

    def __init__(self, path: Path, lock: RunLock) -> None:
        self._path, self._lock, self._maker = path, lock, os.getpid()

    def __call__(self) -> None:
        if os.getpid() == self._maker:
            remove(self._path)
            self._lock.release()


def socket_parent(variable: str, longest_name: int) -> Path | None:
    """Where a folder for sockets is to be made; None where any other is.

    Args:
        variable: Of the environment, in which a user may say it.
        longest_name: Bytes of a socket's name in the folder.

    Raises:
        ConfigError: What the variable says is no folder that can be written, and cannot be made.
    """
    if given := os.environ.get(variable):
        _make(Path(given), variable)
        return Path(given)
    length = len(os.fsencode(tempfile.gettempdir())) + _NAME + longest_name
    short = Path("/tmp")
    return short if length > MAX_SOCKET_PATH and os.access(short, os.W_OK | os.X_OK) else None


def _make(folder: Path, variable: str) -> None:
    """Makes a folder that is not there, as Ray does with the one that it is told."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        why = None if os.access(folder, os.W_OK | os.X_OK) else "it is not writable"
    except OSError as error:
        why = f"it cannot be made ({error.strerror})"
    if why is not None:
        what = f"sockets cannot be put into that folder: {why}"
        raise ConfigError(
            [Problem(f"{variable}={folder}", what, "Name another folder, or unset the variable")]
        )


def claim(folder: Path) -> RunLock:
    """Makes a folder that exists this process's, until it ends or releases the lock."""
    # Under the name that others look at, the file is never there without its lock.
    lock = RunLock(folder / f"{OWNER}.new")
    os.rename(folder / f"{OWNER}.new", folder / OWNER)
    return lock


def remove_abandoned(parent: Path, prefix: str, silent_s: float) -> None:
    """Removes folders that were claimed and are nobody's any more.

    Args:
        parent: Where they are.
        prefix: How their names begin.
        silent_s: Nothing was written in them for so many seconds.
    """
    for folder in parent.glob(f"{prefix}*"):
        # Somebody else may remove it at the same moment.
        with suppress(OSError):
            if _is_abandoned(folder) and time.time() - _last_change(folder) >= silent_s:
                remove(folder)


def remove(folder: Path) -> None:
    """Removes a folder as far as that is possible, and its claim only with all the rest."""
    _remove_elsewhere(folder)
    # What stays is tried again by whoever comes next, since it is nobody's then.
    with suppress(OSError):
        for entry in list(folder.iterdir()):
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            elif entry.name != OWNER:
                entry.unlink(missing_ok=True)
        if all(entry.name == OWNER for entry in folder.iterdir()):
            shutil.rmtree(folder)


def _remove_elsewhere(folder: Path) -> None:
    with suppress(FileNotFoundError):
        for line in (folder / ELSEWHERE).read_text().splitlines():
            inode, path = line.split(maxsplit=1)
            # Most is gone already, and the name may be somebody else's by now.
            with suppress(OSError):
                if os.lstat(path).st_ino == int(inode):
                    os.unlink(path)


def _is_abandoned(folder: Path) -> bool:
    """Whether it is certain that the process that claimed a folder is gone.

    It is not where the file system has no locks, or the process was on another machine: there are
    file systems of several machines whose locks hold on one of them alone.
    """
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        return False
    descriptor = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        told = os.pread(descriptor, 300, 0).decode("utf-8", "replace")
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return told.strip().endswith(f" on {socket.gethostname()}")
    finally:
        os.close(descriptor)


def _last_change(folder: Path) -> float:
    return max(path.lstat().st_mtime for path in (folder, *folder.rglob("*")))
