# SPDX-License-Identifier: Apache-2.0
"""The view of a run on a terminal: five lines that stay where they are, whatever its width.

The first three change with each step. The last two say what goes on at the moment and are drawn
anew twice a second by a thread, which reads and never waits for the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TextIO

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from rlrun.console.activity import Activity
from rlrun.console.step_line import (
    age_fields,
    duration,
    efficiency_fields,
    fit,
    number,
    reward_fields,
    step_text,
)
from rlrun.console.terminal import SteadyConsole, is_utf8, sparkline

_REFRESH_S = 0.5
_BAR_WIDTH = 20
_TREND_WIDTH = 24


class LiveView:
    """Five lines at the lower end of a terminal.

    Args:
        console: The terminal; what is printed with it appears above.
        file: Its file, whose encoding says which characters there are.
        total: The last step, if that is known.
        done: Steps that were made before.
        activity: Says what goes on; None if nobody can.
    """

    def __init__(
        self,
        console: SteadyConsole,
        file: TextIO,
        total: int | None,
        done: int,
        activity: Callable[[], Activity] | None,
    ) -> None:
        self._console, self._file = console, file
        self._total, self._activity = total, activity
        self._step = done
        self._metrics: Mapping[str, float | None] = {}
        self._rewards: Sequence[float] = ()
        self._trend: float | None = None
        self._left: float | None = None
        self._ended = threading.Event()
        self._live = Live(console=console, auto_refresh=False, get_renderable=self._render)
        self._thread = threading.Thread(target=self._refresh, name="live view", daemon=True)

    def start(self) -> None:
        """Appears."""
        self._live.start()
        self._draw()
        if self._activity is not None:
            self._thread.start()

    def step(
        self,
        step: int,
        metrics: Mapping[str, float | None],
        rewards: Sequence[float],
        trend: float | None,
        left: float | None,
    ) -> None:
        """A step has ended.

        Args:
            step: Which.
            metrics: Its own.
            rewards: Mean rewards so far.
            trend: Of them.
            left: Seconds to the end of the run.
        """
        self._step, self._metrics, self._rewards = step, metrics, rewards
        self._trend, self._left = trend, left
        self._draw()

    def stop(self) -> None:
        """Stays as it is, without the lines about the moment."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        self._draw()
        self._live.stop()

    def _refresh(self) -> None:
        while not self._ended.wait(_REFRESH_S):
            self._draw()

    def _draw(self) -> None:
        try:
            self._live.refresh()
        except OSError:
            # The terminal is gone, and the run is worth more.
            self._console.silence()

    def _render(self) -> RenderableType:
        # One column is left free: some terminals wrap a line that fills them.
        width = max(1, self._console.width - 1)
        lines = [self._progress(width)]
        if self._metrics:
            lines += [Text(self._rewarded(width)), Text(self._speed(width), style="dim")]
        if self._activity is not None and not self._ended.is_set():
            now = self._activity()
            lines.append(Text(now.trainer()[:width], style="cyan"))
            lines.append(Text(now.rollouts(width), style="cyan"))
        return Group(*lines)

    def _progress(self, width: int) -> Text:
        head = step_text(self._step, self._total)
        fields = [] if self._left is None else [f"eta {duration(self._left)}"]
        seconds = self._metrics.get("perf/step_s")
        if seconds is not None:
            fields.append(f"{number(seconds)} s/step")
        if not self._metrics:
            fields.append("the first step is under way")
        room = width - len(head) - 2
        if self._total is None or room < _BAR_WIDTH:
            return Text(fit(head, fields, width))
        full, empty = ("━", "─") if is_utf8(self._file) else ("#", "-")
        done = min(_BAR_WIDTH, _BAR_WIDTH * self._step // max(1, self._total))
        rest = fit("", fields, room - _BAR_WIDTH)
        bar = [(full * done, "green"), (empty * (_BAR_WIDTH - done), "dim")]
        return Text.assemble(head, "  ", *bar, f"  {rest}" if rest else "")

    def _rewarded(self, width: int) -> str:
        fields = [*reward_fields(self._metrics, self._trend)]
        curve = sparkline(self._rewards, self._file, _TREND_WIDTH)
        if len(self._rewards) > 1 and fields:
            fields.insert(1, curve)
        for name, label in (
            ("train/response_tokens_mean", "tokens/answer"),
            ("train/entropy", "entropy"),
            ("train/loss", "loss"),
        ):
            if (value := self._metrics.get(name)) is not None:
                fields.append(f"{label} {number(value)}")
        return fit("", fields, width)

    def _speed(self, width: int) -> str:
        fields = [*efficiency_fields(self._metrics), *age_fields(self._metrics)]
        for name, unit in (
            ("perf/generated_tokens_per_s", " tok/s"),
            ("perf/peak_memory_gib", " GiB"),
        ):
            if value := self._metrics.get(name):
                fields.append(f"{number(value)}{unit}")
        generator, step = (self._metrics.get(n) for n in ("idle/generator_s", "perf/step_s"))
        if generator is not None and step:
            fields.append(f"generators idle {100 * generator / step:.0f}%")
        return fit("", fields, width)
