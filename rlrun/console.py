# SPDX-License-Identifier: Apache-2.0
"""What a run says while it goes on: a progress bar on a terminal, elsewhere one line per step.

Colours appear on a terminal only, and not if NO_COLOR is set. Warnings of rlrun's loggers come out
here as well, so a notice is said the same way whatever part of the code it comes from.
"""

from __future__ import annotations

import logging
import math
import sys
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TextIO

from rich.progress import BarColumn, Progress, TaskID, TextColumn

from rlrun.terminal import plain_console

_log = logging.getLogger(__name__)

WINDOW = 10
"""Steps that the trend of the reward, its collapse and the time left are judged by."""

MAX_WIDTH = 99
"""Columns of a line per step, if the terminal is not narrower."""

_BAR_WIDTH = 20


class Console:
    """Speaks to the user of a run. On leaving its context the progress bar is taken down."""

    def __init__(self, file: TextIO | None = None) -> None:
        """Decides by ``file`` whether there is a progress bar.

        Args:
            file: Where to; standard output if None.
        """
        self._rich = plain_console(sys.stdout if file is None else file)
        self._terminal = self._rich.is_terminal and not self._rich.is_dumb_terminal
        self._handler = _Warnings(self)
        self._progress: Progress | None = None
        self._task = TaskID(0)
        self._total: int | None = None
        self._rewards: list[float] = []
        self._seconds: deque[float] = deque(maxlen=WINDOW)
        self._collapse_told = False

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
        """Takes down the progress bar and no longer shows warnings."""
        self._stop_progress()
        logging.getLogger("rlrun").removeHandler(self._handler)

    def say(self, lines: Iterable[str]) -> None:
        """Prints lines as they are, such as what a run is going to do or what it did."""
        for line in lines:
            self._print(line)

    def notice(self, text: str) -> None:
        """Says something that the user should know and that asks for nothing."""
        self._print(f"note: {text}", "cyan")

    def warning(self, text: str) -> None:
        """Says something that the user may have to act on."""
        self._print(f"warning: {text}", "yellow")

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
            self._progress = Progress(
                TextColumn("{task.description}", markup=False),
                BarColumn(bar_width=_BAR_WIDTH),
                TextColumn("{task.fields[rest]}", markup=False),
                console=self._rich,
                auto_refresh=False,
            )
            self._task = self._progress.add_task(
                _step_text(done_steps, total_steps),
                total=total_steps,
                completed=done_steps,
                rest="the first step is under way",
            )
            self._progress.start()
            self._progress.refresh()

    def step(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """A step (or, as step 0, a validation before the first) is finished, with these metrics."""
        reward, seconds = metrics.get("train/reward_mean"), metrics.get("perf/step_s")
        if reward is not None and math.isfinite(reward):
            self._rewards.append(reward)
        if seconds is not None and math.isfinite(seconds):
            self._seconds.append(seconds)
        fields = step_fields(metrics, trend(self._rewards), self._time_left(step))
        head = _step_text(step, self._total)
        if self._progress is None:
            self._print(fit(head, fields, min(MAX_WIDTH, self._width())))
        else:
            room = self._rich.width - len(head) - _BAR_WIDTH - 3
            rest = fit("", fields, room)
            self._progress.update(self._task, completed=step, description=head, rest=rest)
            self._progress.refresh()
            if validation := [field for field in fields if field.startswith("validation")]:
                self._print(fit(head, validation, self._rich.width))
        text = None if self._collapse_told else collapse_notice(self._rewards)
        if text is not None:
            self._collapse_told = True
            self.warning(text)

    def finish(self, lines: Iterable[str]) -> None:
        """The steps are over: takes down the progress bar and says what came out."""
        self._stop_progress()
        self.say(lines)

    def _time_left(self, step: int) -> float | None:
        if self._total is None or not self._seconds:
            return None
        return max(0, self._total - step) * math.fsum(self._seconds) / len(self._seconds)

    def _width(self) -> int:
        return self._rich.width if self._rich.is_terminal else MAX_WIDTH

    def _print(self, text: str, style: str = "") -> None:
        try:
            self._rich.tell(text, style)
        except OSError as error:
            # Such as a full disk behind a redirect. The files of the run say all that is said here.
            self._rich.silence()
            _log.warning("The console cannot be written (%s) and is silent from here on.", error)

    def _stop_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


class _Warnings(logging.Handler):
    """Brings warnings and errors of the loggers to the console."""

    def __init__(self, console: Console) -> None:
        super().__init__(logging.WARNING)
        self._console = console

    def emit(self, record: logging.LogRecord) -> None:
        """Says the message; its traceback, if any, is for log.txt."""
        self._console.warning(record.getMessage())


def step_fields(
    metrics: Mapping[str, float | None], trend: float | None, seconds_left: float | None
) -> list[str]:
    """What a line says about a step, the most important first; what is not known is left out."""
    fields: list[str] = []
    reward = metrics.get("train/reward_mean")
    if reward is not None:
        change = f" ({_number(trend, sign=True)})" if trend is not None else ""
        fields.append(f"reward {_number(reward)}{change}")
    for name, label in (
        ("validation/accuracy", "validation accuracy"),
        ("validation/reward_mean", "validation reward"),
    ):
        if (value := metrics.get(name)) is not None:
            fields.append(f"{label} {_number(value)}")
            break
    if seconds_left is not None:
        fields.append(f"eta {duration(seconds_left)}")
    for name, before, after in (
        ("perf/generated_tokens_per_s", "", " tok/s"),
        ("perf/step_s", "", " s/step"),
        ("train/response_tokens_mean", "", " tokens"),
        ("age/mean", "age ", ""),
        ("train/entropy", "entropy ", ""),
        ("train/loss", "loss ", ""),
    ):
        if (value := metrics.get(name)) is not None:
            fields.append(f"{before}{_number(value)}{after}")
    return fields


def fit(head: str, fields: Sequence[str], width: int) -> str:
    """The head and as many whole fields, in order, as fit into ``width`` columns."""
    line = head
    for field in fields:
        longer = f"{line}  {field}" if line else field
        if len(longer) > width:
            break
        line = longer
    return line[: max(0, width)]


def trend(rewards: Sequence[float]) -> float | None:
    """How much the mean of the last steps lies above that of as many before; None with under 4."""
    size = min(WINDOW, len(rewards) // 2)
    if size < 2:
        return None
    return _mean(rewards[-size:]) - _mean(rewards[-2 * size : -size])


def collapse_notice(rewards: Sequence[float]) -> str | None:
    """A warning if the mean reward of the last 10 steps is under half of that of the first 10.

    None with fewer than 20 steps, or if the first ten had no positive mean to lose.
    """
    if len(rewards) < 2 * WINDOW:
        return None
    first, last = _mean(rewards[:WINDOW]), _mean(rewards[-WINDOW:])
    if first <= 0 or last >= first / 2:
        return None
    return (
        f"the reward has collapsed: {_number(last)} on average over the last {WINDOW} steps, "
        f"{_number(first)} over the first {WINDOW}. Look at the worst samples with `rlrun view`; "
        "a lower policy.optimizer.lr is the usual remedy."
    )


def duration(seconds: float) -> str:
    """Seconds in words of at most two units: 45s, 3m05s, 2h07m, 4d03h."""
    if not math.isfinite(seconds):
        return "unknown"
    whole = round(seconds)
    for size, unit, part, small in (
        (86400, "d", 3600, "h"),
        (3600, "h", 60, "m"),
        (60, "m", 1, "s"),
    ):
        if whole >= size:
            return f"{whole // size}{unit}{whole % size // part:02d}{small}"
    return f"{whole}s"


def _step_text(step: int, total: int | None) -> str:
    return f"step {step}" if total is None else f"step {step:>{len(str(total))}}/{total}"


def _number(value: float, sign: bool = False) -> str:
    plus = "+" if sign else ""
    if not math.isfinite(value):
        return str(value)
    if value == 0 or 0.001 <= abs(value) < 100:
        return f"{value:{plus}.3f}"
    return f"{value:{plus}.0f}" if 100 <= abs(value) < 1e6 else f"{value:{plus}.1e}"


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
