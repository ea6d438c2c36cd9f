# SPDX-License-Identifier: Apache-2.0
"""The group `rlrun gym`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.commands.arguments import ConfigDir, Overrides

gym = typer.Typer(
    name="gym",
    help="""NeMo Gym: make the environment that its servers run in, or run servers by themselves.

    Example: rlrun gym setup
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@gym.command(name="setup")
def setup(
    venv: Annotated[
        Path, typer.Option(help="Folder of the virtual environment, as env.venv names it.")
    ] = Path(".gym-venv"),
    python: Annotated[
        str | None, typer.Option(help="Interpreter to make it with; rlrun's own if unset.")
    ] = None,
) -> None:
    """Make the virtual environment of NeMo Gym's servers, by pip: two minutes, 1 GB.

    Example: rlrun gym setup --venv .gym-venv
    """
    from rlrun.gym.setup import set_up

    set_up(venv, python, _err)


@gym.command(name="serve")
def serve_alone(
    overrides: Overrides = None,
    config_dir: ConfigDir = None,
    run: Annotated[
        Path | None,
        typer.Option(help="Run directory whose policy the agents ask; waited for if need be."),
    ] = None,
) -> None:
    """Run the servers of a recipe's env.config_paths until Ctrl-C; JSON says where they are.

    Example: rlrun gym serve +recipe=gym_quickstart --run runs/mine
    """
    from rlrun.gym.serve import serve

    serve(overrides or [], config_dir, run, _err, typer.echo)


def _err(text: str) -> None:
    typer.echo(text, err=True)
