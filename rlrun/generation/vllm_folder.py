# SPDX-License-Identifier: Apache-2.0
"""Where the processes of an engine meet: sockets, a file, memory; gone with the engine.

vLLM puts them into the folder for temporary files and into /dev/shm, under names that tell of
nobody, and an engine that is killed leaves them there. Sockets can be had elsewhere; the rest is
written down, to be removed with their folder.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from rlrun.process.temporary import ELSEWHERE, SCRATCH, TemporaryFolder, socket_parent

SOCKETS = "VLLM_RPC_BASE_PATH"
_UUID = 36
"""Bytes of the name that vLLM gives a socket."""
_MEMORY = Path("/dev/shm")


class EngineFolder(TemporaryFolder):
    """Of one engine, from its start to its end.

    Attributes:
        variables: By which its processes find it.
    """

    def __init__(self) -> None:
        """Makes it where a user or the system wants it, if that will do for sockets."""
        super().__init__(SCRATCH, parent=socket_parent(SOCKETS, _UUID))
        self.variables = {SOCKETS: str(self.path)}

    def note(self, found: Iterable[str]) -> None:
        """Has what the engine's processes keep elsewhere removed with the folder."""
        (self.path / ELSEWHERE).write_text("".join(f"{line}\n" for line in sorted(set(found))))


def kept_elsewhere(rendezvous: str) -> list[str]:
    """What the calling process of an engine uses and somebody has to remove: inode and path.

    Args:
        rendezvous: Where its workers met, as torch is told it.
    """
    mapped = set()
    for line in Path("/proc/self/maps").read_text().splitlines():
        # Of a semaphore the name is another one by now, and is said to be deleted.
        fields = line.split(maxsplit=5)
        if len(fields) == 6 and fields[5].startswith(f"{_MEMORY}/"):
            mapped.add(int(fields[4]))
    paths = [path for path in _MEMORY.iterdir() if path.lstat().st_ino in mapped] if mapped else []
    file = Path(rendezvous.removeprefix("file://"))
    if file.is_absolute() and file.is_file():
        paths.append(file)
    return [f"{path.lstat().st_ino} {path}" for path in paths]
