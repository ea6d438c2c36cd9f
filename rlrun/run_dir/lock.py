# SPDX-License-Identifier: Apache-2.0
"""One process at a time may train in a run directory; the lock ends with that process.

The lock is flock(2) on a file in the folder, so the kernel drops it whatever kills the process. A
forked child would hold it on after the parent's death, hence every child closes its copy.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
import time
from pathlib import Path

from rlrun.atomic import storage_error
from rlrun.errors import StorageError

_log = logging.getLogger(__name__)

_UNSUPPORTED = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
_held: set[int] = set()


def _drop_in_child() -> None:
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_drop_in_child)


def _lock(descriptor: int) -> None:
    """Takes the lock. Tries a few times, since ``is_locked`` holds a shared one for an instant."""
    attempts = 5
    for attempt in range(attempts):
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if attempt == attempts - 1:
                raise
            time.sleep(0.05)


class RunLock:
    """An exclusive lock, held from construction until ``release`` or the end of the process."""

    def __init__(self, path: Path) -> None:
        """Takes the lock.

        Args:
            path: The lock file; made if it is not there, never removed, since removing a file that
                another process is about to lock would let two of them in.

        Raises:
            StorageError: Another process (named by its pid) holds it, or the file cannot be opened.
        """
        self._owner = os.getpid()
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise storage_error(path, "open", error) from error
        try:
            _lock(self._descriptor)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 200, 0).decode("utf-8", "replace").strip()
            os.close(self._descriptor)
            raise StorageError(
                str(path.parent),
                f"the run directory is in use by {holder or 'another process'}",
                "Wait until it has ended, or end it",
            ) from error
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                os.close(self._descriptor)
                raise storage_error(path, "lock", error) from error
            _log.warning(
                "%s: this file system has no locks (%s); make sure that no second process trains "
                "in this run directory.",
                path.parent,
                error.strerror,
            )
        _held.add(self._descriptor)
        try:
            os.ftruncate(self._descriptor, 0)
            os.pwrite(
                self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0
            )
        except OSError as error:
            self.release()
            raise storage_error(path, "write", error) from error

    def release(self) -> None:
        """Lets others in. May be called twice; does nothing in a forked child."""
        if self._owner == os.getpid() and self._descriptor in _held:
            _held.discard(self._descriptor)
            os.close(self._descriptor)


def is_locked(path: Path) -> bool:
    """Whether a live process holds the lock file.

    False too where that cannot be found out (no file, no permission, no locks).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(descriptor)
    return False
