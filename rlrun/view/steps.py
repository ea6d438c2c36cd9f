# SPDX-License-Identifier: Apache-2.0
"""The steps of a run as a table: what came out, and what each one waited for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from rlrun.console.activity import short_id
from rlrun.console.terminal import SteadyConsole, visible
from rlrun.metrics.logs import read_metrics
from rlrun.metrics.stragglers import Cause
from rlrun.report.run_data import read_timeline
from rlrun.run_dir.directory import RunDir

_WIDE = 120
"""Columns of a terminal that has room for whole identities of prompts."""

_SHORT_ID = 12

_COLUMNS = (
    ("reward", "train/reward_mean", 0),
    ("valid.", "validation/accuracy", 0),
    ("tokens", "train/response_tokens_mean", 100),
    ("entropy", "train/entropy", 120),
    ("loss", "train/loss", 140),
    ("age", "age/mean", 0),
    ("ESS", "correction/ess", 120),
    ("mismatch", "correction/mismatch_kl", 140),
    ("s/step", "perf/step_s", 0),
    ("waited", "idle/trainer_s", 0),
)
"""Title, metric, and the least width of a terminal that has room for it."""


def print_steps(console: SteadyConsole, run_dir: RunDir, count: int) -> None:
    """Prints the last steps, a line each.

    Args:
        console: Where to.
        run_dir: The run.
        count: How many; 0 for all.

    Raises:
        StorageError: A file is damaged.
    """
    lines = read_metrics(run_dir.metrics) if run_dir.metrics.exists() else []
    timeline = read_timeline(run_dir.timeline) if run_dir.timeline.exists() else []
    late = {line["step"]: line["stragglers"] for line in timeline}
    table = Table(box=None, pad_edge=False, show_edge=False)
    table.add_column("step", justify="right", no_wrap=True)
    columns = [(title, name) for title, name, least in _COLUMNS if console.width >= least]
    for title, _ in columns:
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("ended last", overflow="fold")
    table.add_column("why", no_wrap=True)
    for line in lines[-count:] if count else lines:
        values = [_number(line.get(name)) for _, name in columns]
        name, why = _straggler(late.get(line["step"], ()))
        name = name if console.width >= _WIDE else short_id(name, _SHORT_ID)
        table.add_row(str(line["step"]), *values, name, why)
    console.print(table)


def _straggler(stragglers: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    if not stragglers:
        return "", ""
    last = stragglers[0]
    cause = "as the others" if last["cause"] == Cause.NONE else last["cause"].replace("_", " ")
    return visible(last["prompt_id"]), visible(f"{cause}, {last['end'] - last['start']:.1f} s")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return "0" if abs(value) < 0.0005 else f"{value:.3g}"
