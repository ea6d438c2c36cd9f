# SPDX-License-Identifier: Apache-2.0
"""Commands that measure a policy, or take it out of its run: `rlrun eval`, `export`, `score`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from rlrun.commands.arguments import AsJson, ConfigDir, Overrides, RunDirArgument
from rlrun.commands.output import results_apart


def evaluate(
    model_or_run: Annotated[
        str,
        typer.Argument(
            metavar="MODEL_OR_RUN",
            help="A run directory, a model's folder, rlrun:tiny, or a model's name on the hub.",
            show_default=False,
        ),
    ],
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    step: Annotated[
        int | None,
        typer.Option(help="Checkpoint of the run; the newest whole one if unset."),
    ] = None,
    samples: Annotated[
        int | None,
        typer.Option(
            min=1, help="Samples per prompt; grpo.val_num_generations_per_prompt if unset."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write the samples there, as JSON lines; a file there is replaced."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Evaluate a model or a run on data.validation: accuracy and pass@k with 95 % intervals.

    Of a run, its own settings and newest checkpoint are used. A model needs a recipe or overrides
    that say which data, environment and lengths. The table is on stderr, JSON on stdout.

    Example: rlrun eval runs/quickstart/20261129-120000 --samples 8 --json

    Example: rlrun eval rlrun:tiny +recipe=quickstart grpo.max_val_samples=100
    """
    from rlrun.console.console import Console
    from rlrun.evaluation.command import evaluate as run
    from rlrun.evaluation.report import print_report

    with Console(sys.stderr) as console, results_apart():
        report = run(
            model_or_run,
            overrides or [],
            console,
            config_dir=config_dir,
            step=step,
            samples=samples,
            out=out,
        )
    print_report(report, sys.stderr)
    if as_json:
        typer.echo(json.dumps(report.to_json(), indent=2, ensure_ascii=False))


def export(
    run_dir: RunDirArgument,
    destination: Annotated[
        Path,
        typer.Argument(
            metavar="DEST", help="A folder that does not exist or is empty.", show_default=False
        ),
    ],
    step: Annotated[
        int | None, typer.Option(help="Checkpoint; the newest whole one if unset.")
    ] = None,
    merge: Annotated[
        bool,
        typer.Option(
            "--merge/--adapter",
            help="Of a LoRA run: the adapter added to the weights, or the adapter alone.",
        ),
    ] = True,
    dtype: Annotated[str, typer.Option(help="Of the weights: float32 or bfloat16.")] = "float32",
) -> None:
    """Write a run's policy as a Hugging Face folder that transformers and vLLM load.

    Example: rlrun export runs/quickstart/20261129-120000 my-model --dtype bfloat16
    """
    from rlrun.console.console import Console
    from rlrun.models.export import export as run

    with Console(sys.stderr) as console:
        run(run_dir, destination, console, step=step, merge=merge, dtype=dtype)


def score(
    file: Annotated[Path, typer.Argument(help='JSONL of {"response", "gold"} or stored rollouts.')],
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
) -> None:
    """Score responses offline; one JSON line per row on stdout, in input order.

    Example: rlrun score answers.jsonl env=math
    """
    from rlrun.evaluation.stored import score as score_stored

    typer.echo(str(score_stored(file, overrides or [], config_dir, sys.stdout)), err=True)
