# SPDX-License-Identifier: Apache-2.0
"""Files and folders that are there completely or not at all, also after a crash or power loss.

The order is always the same: write under a temporary name on the same file system, fsync the
content, rename, fsync the folder. Temporary names start with a dot and end in ``.tmp``, so no
reader takes one for the real thing and the next start can remove what a crash left behind.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from rlrun.errors import StorageError

_REMEDIES = {
    errno.ENOSPC: "Free disk space, or choose another run_dir",
    errno.EDQUOT: "Your quota is used up: free space, or choose another run_dir",
    errno.EFBIG: "Files of this size are not allowed here (see ulimit -f)",
    errno.EACCES: "Check the permissions of the folder, or choose another run_dir",
    errno.EPERM: "Check the permissions of the folder, or choose another run_dir",
    errno.EROFS: "The file system is read-only: choose another run_dir",
    errno.EEXIST: "There is a file of this name: choose another path",
    errno.ENOENT: "Check the path",
    errno.EISDIR: "Give the path of a file",
    errno.ENAMETOOLONG: "Give a shorter path",
    errno.ELOOP: "Take the link away, or choose another path",
    errno.ENOTDIR: "A part of the path is a file: choose another run_dir",
}


def storage_error(path: Path | str, verb: str, error: OSError) -> StorageError:
    """The StorageError for ``error``, which came up while trying to ``verb`` the path."""
    reason = error.strerror or str(error)
    remedy = _REMEDIES.get(error.errno or 0, "")
    return StorageError(str(path), f"cannot {verb}: {reason}", remedy)


def temporary_name(path: Path) -> Path:
    """The name beside ``path`` under which it is written before it is complete."""
    return path.with_name(f".{path.name}.tmp")


def fsync_dir(path: Path) -> None:
    """Makes the entries of a folder (names, renames, removals) durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_file(path: Path) -> None:
    """Makes the content of an existing file durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path, *, private: bool = False) -> Iterator[BinaryIO]:
    """A binary file that appears as ``path`` when the block ends without an exception.

    Args:
        path: Where to.
        private: Nobody but its owner may read it, at any moment.

    Raises:
        StorageError: It cannot be written; what was at ``path`` before is untouched.
    """
    if path.is_dir():
        raise StorageError(str(path), "is a folder", "Give the path of a file")
    temporary = temporary_name(path)
    try:
        if private:
            # One that was left behind would keep its permissions.
            temporary.unlink(missing_ok=True)
        with open(temporary, "wb", opener=_open_private if private else _open_itself) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        fsync_dir(path.parent)
    except OSError as error:
        with suppress(OSError):  # The first error is the one to be told.
            temporary.unlink(missing_ok=True)
        raise storage_error(path, "write", error) from error
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_file(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """Puts ``content`` (text as UTF-8) at ``path``, replacing what is there.

    Args:
        path: Where to.
        content: What.
        private: Nobody but its owner may read it, at any moment.

    Raises:
        StorageError: It cannot be written; what was there before is untouched.
    """
    with atomic_file(path, private=private) as file:
        file.write(content.encode("utf-8") if isinstance(content, str) else content)


def _open_private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_EXCL, 0o600)


def _open_itself(path: str, flags: int) -> int:
    # A link that somebody put there, as in /tmp, would lead to a file of the user's.
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def rename_durably(source: Path, destination: Path) -> None:
    """Renames within a file system and makes the rename durable.

    Raises:
        OSError: As os.rename and os.fsync raise it.
    """
    os.rename(source, destination)
    fsync_dir(destination.parent)
    if source.parent != destination.parent:
        fsync_dir(source.parent)


def remove_temporaries(folder: Path) -> None:
    """Removes what an interrupted write left in a folder. A missing folder has nothing to remove.

    Raises:
        StorageError: Something cannot be removed.
    """
    try:
        for path in folder.glob(".*.tmp"):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
    except OSError as error:
        raise storage_error(folder, "remove temporary files", error) from error
