# SPDX-License-Identifier: Apache-2.0
"""The HTML report of a run, or of several side by side: one file that needs nothing else.

``write_report`` is all that the rest of rlrun uses. Nothing here changes a run directory but the
report itself, and a run that still goes on may be reported on.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rlrun.atomic import write_file
from rlrun.report.page import render
from rlrun.report.run_data import collect
from rlrun.run_dir.directory import RunDir


def write_report(roots: Sequence[Path], out: Path | None = None) -> Path:
    """Writes a report.

    Args:
        roots: Run directories; with several the report compares them.
        out: The file, replaced if it exists. None: report.html in the run directory, or
            compare.html in the first one.

    Returns:
        The file.

    Raises:
        StorageError: A folder holds no run, a file of it is damaged, or ``out`` cannot be written.
    """
    runs = [RunDir.read(root) for root in roots]
    names = _names([run.root for run in runs])
    # What all runs have must fit into the one file.
    pages = [collect(run, name, 1 / len(runs)) for run, name in zip(runs, names, strict=True)]
    if out is None:
        out = runs[0].report if len(runs) == 1 else runs[0].root / "compare.html"
    write_file(out, render(pages))
    return out


def _names(roots: Sequence[Path]) -> list[str]:
    """Short names that tell the runs apart."""
    for depth in range(1, 4):
        names = ["/".join(root.parts[-depth:]) for root in roots]
        if len(set(names)) == len(names):
            return names
    return [f"{name} ({number})" for number, name in enumerate(names, 1)]
