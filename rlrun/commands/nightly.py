# SPDX-License-Identifier: Apache-2.0
"""`rlrun nightly`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rlrun.commands.arguments import ConfigDir
from rlrun.commands.output import tell


def nightly(
    tier: Annotated[
        str, typer.Option(help="Hardware of the runs: cpu, 1gpu, 1node or multinode.")
    ] = "cpu",
    recipes: Annotated[
        str | None,
        typer.Option(
            help="Names or files of recipes, separated by commas; unset: all that have a nightly "
            "file."
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            help="Folder of the nightly [default: nightly/DATE-TIME]; one that was interrupted "
            "goes on."
        ),
    ] = None,
    trend: Annotated[
        Path | None,
        typer.Option(help="The trend file [default: trend.jsonl beside the folder]"),
    ] = None,
    config_dir: ConfigDir = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Check the nightly files and list the runs.")
    ] = False,
) -> None:
    """Run recipes as their nightly files say, and assert what they promise.

    Exit code 1 if an assertion fails. The folder gets junit.xml, summary.md, and the run
    directories; the summary is on stdout.

    Example: rlrun nightly --tier cpu --recipes quickstart
    """
    from rlrun.nightly.command import default_out, nightly_command

    chosen = None if recipes is None else [name.strip() for name in recipes.split(",")]
    folder = default_out() if out is None else out
    tell(nightly_command(tier, chosen, folder, trend, config_dir, dry_run=dry_run))
