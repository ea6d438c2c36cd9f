# SPDX-License-Identifier: Apache-2.0
"""The folder of a Ray that a run started: Ray leaves one at every start, and removes none."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from rlrun.process.temporary import KEPT_S, claim, remove, remove_abandoned

NAMES, LATEST = "session_", "session_latest"
LOGS = f"Ray's own logs are in /tmp/ray/{LATEST}/logs of each machine"
"""Of a cluster that somebody else started, or of a Ray that did not start."""


class Session:
    """Sockets and logs of Ray, from its start to its end."""

    def __init__(self, path: Path) -> None:
        """Takes over the folder, and removes those of earlier runs that were killed."""
        remove_abandoned(path.parent, NAMES, KEPT_S)
        self._path, self._lock, self._told = path, claim(path), False

    def logs(self) -> str:
        """Where Ray's logs are, for whoever reads an error; they then stay for a week."""
        self._told = True
        return f"Ray's own logs are in {self._path}/logs"

    def end(self) -> None:
        """Removes the folder unless somebody was sent to it; Ray has ended. May be called twice."""
        if not self._told:
            remove(self._path)
            latest = self._path.parent / LATEST
            # Ray does not replace a link that leads nowhere.
            with suppress(OSError):
                if os.readlink(latest) == str(self._path) and not self._path.exists():
                    latest.unlink()
        self._lock.release()
