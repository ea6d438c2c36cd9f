# SPDX-License-Identifier: Apache-2.0
"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        help="+recipe=NAME|FILE.yaml, group=choice and key=value, in any order.",
        show_default=False,
    ),
]
ConfigDir = Annotated[
    Path | None,
    typer.Option("--config-dir", help="A folder of your own recipes and groups."),
]
RunDirArgument = Annotated[Path, typer.Argument(help="The run directory.", show_default=False)]
Strict = Annotated[bool, typer.Option("--strict", help="Refuse what could not be verified.")]
AsJson = Annotated[bool, typer.Option("--json", help="Machine-readable output.")]
