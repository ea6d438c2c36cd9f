# SPDX-License-Identifier: Apache-2.0
"""What a run says while it goes on: a live view on a terminal, elsewhere one line per step.

Colours appear on a terminal only, and not if NO_COLOR is set. Warnings of rlrun's loggers come out
here as well, so a notice is said the same way whatever part of the code it comes from. What is said
here goes to the log, too: the terminal is gone when somebody asks what the run said.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TextIO

from rlrun.console.activity import Activity
from rlrun.console.live_view import LiveView
from rlrun.console.step_line import (
    WINDOW,
    collapse_notice,
    fit,
    reward_fields,
    silence_notice,
    step_fields,
    step_text,
)
from rlrun.console.step_line import trend as trend_of
from rlrun.console.terminal import plain_console

_log = logging.getLogger(__name__)

MAX_WIDTH = 99
"""Columns of a line per step, if the terminal is not narrower."""


class Console:
    """Speaks to the user of a run. On leaving its context the live view is taken down."""

    def __init__(self, file: TextIO | None = None) -> None:
        """Decides by ``file`` whether there is a live view.

        Args:
            file: Where to; standard output if None.
        """
        self._file = sys.stdout if file is None else file
        self._rich = plain_console(self._file)
        self._terminal = self._rich.is_terminal and not self._rich.is_dumb_terminal
        self._handler = _Warnings(self)
        self._live: LiveView | None = None
        self._activity: Callable[[], Activity] | None = None
        self._total: int | None = None
        self._rewards: list[float] = []
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._collapse_told = False
        self._silent = 0
        self._silence_told = False

    def __enter__(self) -> Console:
        """Shows warnings of the loggers from here on."""
        logging.getLogger("rlrun").addHandler(self._handler)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Takes down the live view and no longer shows warnings."""
        self._stop_live()
        logging.getLogger("rlrun").removeHandler(self._handler)

    def say(self, lines: Iterable[str]) -> None:
        """Prints lines as they are, such as what a run is going to do or what it did."""
        for line in lines:
            self._print(line)

    def notice(self, text: str) -> None:
        """Says something that the user should know and that asks for nothing."""
        self._print(f"note: {text}", "cyan")

    def warning(self, text: str, *, logged: bool = False) -> None:
        """Says something that the user may have to act on.

        Args:
            text: What.
            logged: Whether the log has it already.
        """
        self._print(f"warning: {text}", "yellow", logged=logged)

    def watch(self, activity: Callable[[], Activity]) -> None:
        """From now on this says what the run does at the moment; it is asked in a thread."""
        self._activity = activity

    def begin(
        self, total_steps: int | None, done_steps: int = 0, rewards: Sequence[float] = ()
    ) -> None:
        """The steps begin.

        Args:
            total_steps: The step that is the last one, if that is known.
            done_steps: Steps that were made before this process (on a resume).
            rewards: Mean reward of each of them, for trend and collapse.
        """
        self._total = total_steps
        self._rewards = [reward for reward in rewards if math.isfinite(reward)]
        if self._terminal:
            self._live = LiveView(self._rich, self._file, total_steps, done_steps, self._activity)
            self._live.start()

    def step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """A step (or, as step 0, a validation before the first) is finished, with these metrics."""
        reward, seconds = metrics.get("train/reward_mean"), metrics.get("perf/step_s")
        if reward is not None and math.isfinite(reward):
            self._rewards.append(reward)
        if seconds is not None and math.isfinite(seconds):
            self._seconds.append(seconds)
        left, trend = self._time_left(step), trend_of(self._rewards)
        head = step_text(step, self._total)
        activity = self._activity() if self._activity is not None else None
        fields = step_fields(metrics, trend, left, activity)
        _log.info("%s", fit(head, fields, MAX_WIDTH))
        if self._live is None:
            self._print(fit(head, fields, min(MAX_WIDTH, self._width())), logged=True)
        else:
            self._live.step(step, metrics, self._rewards, trend, left)
            told = [f for f in reward_fields(metrics, None) if f.startswith("validation")]
            if told:
                self._print(fit(head, told, self._rich.width), logged=True)
        text = None if self._collapse_told else collapse_notice(self._rewards)
        if text is not None:
            self._collapse_told = True
            self.warning(text)
        self._tell_silence(metrics)

    def _tell_silence(self, metrics: Mapping[str, float | None]) -> None:
        """Warns, once per stretch of them, of steps that change no weight."""
        skipped = metrics.get("train/skipped_update")
        if skipped is None:
            return
        self._silent = self._silent + 1 if skipped else 0
        self._silence_told &= self._silent > 0
        text = silence_notice(self._silent, metrics.get("train/reward_mean"))
        if text is not None and not self._silence_told:
            self._silence_told = True
            self.warning(text)

    def finish(self, lines: Iterable[str]) -> None:
        """The steps are over: takes down the live view and says what came out."""
        self._stop_live()
        self.say(lines)

    def _time_left(self, step: int) -> float | None:
        if self._total is None or not self._seconds or step >= self._total:
            return None
        return (self._total - step) * math.fsum(s / len(self._seconds) for s in self._seconds)

    def _width(self) -> int:
        return self._rich.width if self._rich.is_terminal else MAX_WIDTH

    def _print(self, text: str, style: str = "", *, logged: bool = False) -> None:
        if not logged:
            _log.info("%s", text)
        try:
            self._rich.tell(text, style)
        except OSError as error:
            # Such as a full disk behind a redirect. The files of the run say all that is said here.
            self._rich.silence()
            _log.warning("The console cannot be written (%s) and is silent from here on.", error)

    def _stop_live(self) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class _Warnings(logging.Handler):
    """Brings warnings and errors of the loggers to the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Says the message; its traceback, if any, is for log.txt."""
        self._console.warning(record.getMessage(), logged=True)
