# SPDX-License-Identifier: Apache-2.0
"""`rlrun plot`: the curves of runs, as text in the terminal or as a PNG picture."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

from rich.table import Table

from rlrun.atomic import write_file
from rlrun.console.png_chart import Curve, Panel, draw
from rlrun.console.step_line import number
from rlrun.console.terminal import columns, plain_console, sparkline, visible
from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.metrics.logs import read_metrics
from rlrun.metrics.registry import why_never_logged
from rlrun.run_dir.directory import RunDir

DEFAULTS = (
    "train/reward_mean",
    "validation/accuracy",
    "train/loss",
    "train/kl_to_reference",
    "train/entropy",
    "correction/mismatch_kl",
    "correction/ess",
    "train/response_tokens_mean",
    "age/mean",
    "perf/step_s",
)
"""What is drawn if nothing is named: those of them that a run has."""

_WIDTH = 60
_NARROWEST = 8


def plot_runs(
    roots: Sequence[Path],
    *,
    metrics: Sequence[str],
    png: bool,
    out: Path | None,
    file: TextIO | None = None,
) -> None:
    """Draws.

    Args:
        roots: Run directories.
        metrics: Names; the usual ones if empty.
        png: Whether to draw a picture.
        out: The picture's file; None for plot.png in the first run directory.
        file: Where text goes; standard output if None.

    Raises:
        ConfigError: A name is no metric, or ``out`` is given without ``png``.
        StorageError: A folder holds no run, or no run has a value of any of the metrics.
    """
    _check(metrics, png, out)
    target = sys.stdout if file is None else file
    runs = [RunDir.read(root) for root in roots]
    lines = {
        visible(_name(run.root, roots)): read_metrics(run.metrics) if run.metrics.exists() else []
        for run in runs
    }
    panels = [panel for name in metrics or DEFAULTS if (panel := _panel(name, lines)).curves]
    if not panels:
        what = "has no step yet" if not metrics else f"has no value of {', '.join(metrics)}"
        raise StorageError(
            str(runs[0].metrics), what, "Look at the names in it, or wait for a step"
        )
    console = plain_console(target)
    if png:
        path = out if out is not None else runs[0].root / "plot.png"
        write_file(path, draw(panels))
        console.tell(str(path))
    else:
        console.print(_table(panels, target, console.width, several=len(runs) > 1))


def _table(panels: Sequence[Panel], target: TextIO, width: int, *, several: bool) -> Table:
    """A line per curve, drawn beside its first and last value; with its run if there are several.

    Args:
        panels: With a curve each at least.
        target: What the curves are drawn for: its encoding decides how.
        width: Columns of the table.
        several: Whether there are several runs.
    """
    heads = ["metric", *(["run"] if several else []), "first", "last"]
    rows = [
        [panel.title, *([curve.name] if several else []), number(first), number(last)]
        for panel, curve in _curves(panels)
        for (_, first), (_, last) in [(curve.points[0], curve.points[-1])]
    ]
    taken = sum(2 + max(map(columns, column)) for column in zip(heads, *rows, strict=True))
    # A curve that is folded reads as two.
    left = max(_NARROWEST, min(_WIDTH, width - taken))
    table = Table(box=None, pad_edge=False, show_edge=False)
    for title in (*heads, "over the steps"):
        table.add_column(title, overflow="fold")
    for row, (_, curve) in zip(rows, _curves(panels), strict=True):
        table.add_row(*row, sparkline([value for _, value in curve.points], target, left))
    return table


def _curves(panels: Sequence[Panel]) -> list[tuple[Panel, Curve]]:
    """Every curve with the panel that it is in."""
    return [(panel, curve) for panel in panels for curve in panel.curves]


def _check(metrics: Sequence[str], png: bool, out: Path | None) -> None:
    problems = [
        Problem("--metric", why, "docs/metrics.md lists the names")
        for name in metrics
        if (why := why_never_logged(name)) is not None and "not a metric" in why
    ]
    if out is not None and not png:
        problems.append(Problem("--out", "is given without --png", "Add --png, or leave it out"))
    if problems:
        raise ConfigError(problems)


def _name(root: Path, roots: Sequence[Path]) -> str:
    """The folder's name, or its path where several have the same."""
    same = [other for other in roots if other.absolute().name == root.name]
    return root.name if len(same) == 1 else str(root)


def _panel(metric: str, runs: Mapping[str, Sequence[Mapping[str, Any]]]) -> Panel:
    curves = []
    for name, lines in runs.items():
        points = [
            (float(ln["step"]), float(ln[metric])) for ln in lines if ln.get(metric) is not None
        ]
        if points:
            curves.append(Curve(name, points))
    return Panel(metric, curves)
