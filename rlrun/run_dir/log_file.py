# SPDX-License-Identifier: Apache-2.0
"""log.txt: everything that rlrun's loggers say, with times; the part before it in log.txt.1."""

from __future__ import annotations

import logging
from contextlib import suppress
from logging.handlers import RotatingFileHandler
from pathlib import Path

from rlrun.atomic import storage_error
from rlrun.console.terminal import visible

MAX_BYTES = 64 * 2**20
"""Of log.txt; at some 200 bytes per step that is more than most runs ever write."""

_log = logging.getLogger(__name__)


class _Visible(logging.Formatter):
    """What models, rows and clients wrote does nothing on a terminal that shows the file."""

    def format(self, record: logging.LogRecord) -> str:
        """The text of a record, a traceback included."""
        return visible(super().format(record))


class LogFile(RotatingFileHandler):
    """Handler of log.txt. A full disk costs the log, not the run."""

    _broken = False

    @classmethod
    def attach(cls, path: Path) -> LogFile:
        """Appends to ``path`` what the "rlrun" loggers say from INFO on.

        Raises:
            StorageError: The file cannot be opened.
        """
        try:
            handler = cls(
                path,
                maxBytes=MAX_BYTES,
                backupCount=1,
                encoding="utf-8",
                errors="backslashreplace",
            )
        except OSError as error:
            raise storage_error(path, "open", error) from error
        handler.setLevel(logging.INFO)
        handler.setFormatter(_Visible("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logger = logging.getLogger("rlrun")
        if not logger.isEnabledFor(logging.INFO):
            logger.setLevel(logging.INFO)
        logger.addHandler(handler)
        return handler

    def detach(self) -> None:
        """Ends the file."""
        logging.getLogger("rlrun").removeHandler(self)
        # Closing flushes once more what could not be written; that has been said already.
        with suppress(OSError):
            self.close()

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (name of the base class)
        """Says once, through the other handlers, that the file cannot be written."""
        if not self._broken:
            self._broken = True
            _log.warning("%s cannot be written; it will have gaps.", self.baseFilename)
