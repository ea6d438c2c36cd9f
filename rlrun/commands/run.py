# SPDX-License-Identifier: Apache-2.0
"""Commands that start a run, or show what would: `rlrun train`, `resume`, `check`, `config`."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from rlrun.commands.arguments import AsJson, ConfigDir, Overrides, RunDirArgument, Strict
from rlrun.commands.output import results_apart
from rlrun.errors import ConfigError


def train(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check everything, start nothing (as rlrun check).")
    ] = False,
) -> None:
    """Train a policy.

    Example: rlrun train +recipe=quickstart grpo.max_num_steps=20
    """
    if dry_run:
        check(overrides, config_dir)
        return
    from rlrun.config import load

    loaded = load(overrides or [], config_dir)
    from rlrun.assemble import train as run

    run(loaded)


def resume(run_dir: RunDirArgument, overrides: Overrides = None) -> None:
    """Go on with an interrupted run from its newest checkpoint.

    Example: rlrun resume runs/quickstart/20261129-120000 grpo.max_num_steps=60
    """
    from rlrun.assemble import resume as run

    run(run_dir, overrides or [])


def check(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    strict: Strict = False,
    as_json: AsJson = False,
) -> None:
    """Check a run before it starts: configuration, data, model, rewards, sizes.

    Example: rlrun check +recipe=quickstart
    """
    from rlrun.config import load

    try:
        with results_apart():
            loaded = load(overrides or [], config_dir)
    except ConfigError as error:
        if as_json:
            # Only here, since it takes torch along.
            from rlrun.preflight import problem_lines, to_json

            typer.echo(to_json(problem_lines(error)))
        raise
    from rlrun.preflight import exit_code, preflight, render, to_json

    with results_apart():
        lines = preflight(loaded)
    if as_json:
        typer.echo(to_json(lines))
    else:
        render(lines, sys.stdout)
    raise typer.Exit(exit_code(lines, strict))


def config(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    origin: Annotated[bool, typer.Option("--origin", help="Where each value comes from.")] = False,
    schema: Annotated[bool, typer.Option("--schema", help="JSON Schema of all keys.")] = False,
    diff: Annotated[
        tuple[str, str] | None,
        typer.Option("--diff", help="Two run directories or recipes to compare."),
    ] = None,
) -> None:
    """Show the resolved run.

    Example: rlrun config +recipe=quickstart --origin
    """
    from rlrun.config import load, schema_json, show

    if schema:
        typer.echo(json.dumps(schema_json(), indent=2, ensure_ascii=False))
    elif diff is not None:
        with results_apart():
            text = show.diff_text(*diff, config_dir=config_dir)
        typer.echo(text)
    else:
        with results_apart():
            loaded = load(overrides or [], config_dir)
        typer.echo(show.origin_text(loaded) if origin else loaded.yaml())


def recipes(
    name: Annotated[
        str | None,
        typer.Argument(help="Recipe to show; all are listed if unset.", show_default=False),
    ] = None,
    config_dir: ConfigDir = None,
) -> None:
    """List the recipes, or show one.

    Example: rlrun recipes quickstart
    """
    from rlrun.config import show

    typer.echo(show.recipes_text(name, config_dir=config_dir))
