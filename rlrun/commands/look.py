# SPDX-License-Identifier: Apache-2.0
"""Commands that look at runs and change nothing: `rlrun view`, `report`, `plot`, `audit`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.commands.arguments import RunDirArgument
from rlrun.commands.output import tell

RunDirs = Annotated[
    list[Path],
    typer.Argument(metavar="RUN_DIR...", help="Run directories.", show_default=False),
]


def view(
    run_dir: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_DIR|FILE",
            help="A run directory, or a file that rlrun eval --out wrote.",
            show_default=False,
        ),
    ],
    step: Annotated[int | None, typer.Option(help="Step to show; the last one if unset.")] = None,
    sort: Annotated[
        str, typer.Option(help="worst, best, longest, shortest or advantage: what comes first.")
    ] = "worst",
    count: Annotated[int, typer.Option("--count", "-n", min=0, help="Rollouts to show.")] = 3,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", help="Follow one prompt_id over the steps."),
    ] = None,
    diff: Annotated[
        bool, typer.Option("--diff", help="With --prompt: how its best answer changed.")
    ] = False,
    steps: Annotated[
        int | None,
        typer.Option(
            min=0, help="A table of so many last steps instead, with what each waited for; 0: all."
        ),
    ] = None,
    validation: Annotated[
        bool, typer.Option("--validation", help="Samples of a validation instead.")
    ] = False,
) -> None:
    """Look at a run in the terminal: steps, and rollouts with their rewards.

    Example: rlrun view runs/quickstart/20261129-120000 --step 40 --sort best

    Example: rlrun view runs/quickstart/20261129-120000 --prompt train.jsonl:12 --diff
    """
    from rlrun.view import view as show

    show(
        run_dir,
        step=step,
        sort=sort,
        count=count,
        prompt_id=prompt,
        diff=diff,
        steps=steps,
        validation=validation,
    )


def report(
    run_dirs: RunDirs,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The file; unset: report.html, or with several runs compare.html, in the first "
            "run directory. A file there is replaced.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Write a report of a run, or a comparison of several, as one HTML file.

    It needs no network and no other file: curves, where time and tokens went and what to change
    first, a timeline, rollouts token by token, the configuration with its origins.

    Example: rlrun report runs/quickstart/20261129-120000

    Example: rlrun report runs/quickstart/sync runs/quickstart/async --out compare.html
    """
    from rlrun.report import write_report

    typer.echo(str(write_report(run_dirs, out)))


def plot(
    run_dirs: RunDirs,
    metric: Annotated[
        list[str] | None,
        typer.Option("--metric", "-m", help="Metrics; may be given several times."),
    ] = None,
    png: Annotated[bool, typer.Option("--png", help="Draw a picture instead.")] = False,
    out: Annotated[
        Path | None,
        typer.Option(
            help="The picture's file; unset: plot.png in the first run directory. A file there is "
            "replaced.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Draw the curves of runs in the terminal, or as a PNG picture.

    Example: rlrun plot runs/quickstart/20261129-120000 --png

    Example: rlrun plot runs/quickstart/sync runs/quickstart/async -m validation/accuracy
    """
    from rlrun.console.plot import plot_runs

    plot_runs(run_dirs, metrics=metric or [], png=png, out=out)


def audit(run_dir: RunDirArgument) -> None:
    """Prove that every prompt of an epoch was used exactly once, over all restarts.

    Example: rlrun audit runs/quickstart/20261129-120000
    """
    from rlrun.audit import audit as audit_run

    report = audit_run(run_dir)
    tell(report.text())
    report.raise_if_failed()
