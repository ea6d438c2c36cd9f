# SPDX-License-Identifier: Apache-2.0
"""What commands print: results for programs, and texts for people, safe for any terminal."""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager, redirect_stdout

import typer


def results_apart() -> AbstractContextManager[object]:
    """What code of the user prints is no result of a command, and goes to standard error."""
    return redirect_stdout(sys.stderr)


def tell(text: str) -> None:
    """Says to people what was found, in which anybody may have written."""
    from rlrun.console.terminal import visible

    typer.echo(visible(text))


def tell_error(text: str) -> None:
    """Says what went wrong, in which a row, a template or a model may have written anything."""
    from rlrun.console.terminal import visible

    typer.echo(visible(text), err=True)
