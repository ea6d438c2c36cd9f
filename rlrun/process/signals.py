# SPDX-License-Identifier: Apache-2.0
"""Ctrl-C and SIGTERM: once ends the run after the step in progress, twice ends it at once."""

from __future__ import annotations

import logging
import os
import signal
from types import FrameType, TracebackType

log = logging.getLogger(__name__)


class StopSignal:
    """Catches both signals while it is entered.

    Attributes:
        signal_number: The signal that asked for the end, or None.
    """

    def __init__(self) -> None:
        self.signal_number: int | None = None
        self._previous: dict[int, object] = {}

    def __enter__(self) -> StopSignal:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._previous[number] = signal.signal(number, self._received)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # type: ignore[arg-type]  # as signal.signal gave it

    def _received(self, number: int, frame: FrameType | None) -> None:
        if self.signal_number is not None:
            # Children notice that their parent is gone; whatever is on disk is whole.
            os._exit(128 + number)
        self.signal_number = number
        log.warning(
            "%s: the run is saved and ends after this step; again to end at once.",
            signal.Signals(number).name,
        )
