# SPDX-License-Identifier: Apache-2.0
"""Whether the packages of the sinks that a run asks for are there: said before anything starts."""

from __future__ import annotations

from importlib.util import find_spec
from typing import TYPE_CHECKING

from rlrun.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rlrun.config.schema import Logging


def check_sinks_installed(logging: Logging) -> None:
    """Looks for the packages without importing them.

    Raises:
        ConfigError: A sink that is asked for lacks its package; with the line that installs it.
    """
    problems = []
    for name, enabled in (("wandb", logging.wandb.enabled), ("mlflow", logging.mlflow.enabled)):
        if enabled and find_spec(name) is None:
            key = f"logging.{name}.enabled"
            what = f"{key}=true needs the package {name}, which is not installed"
            remedy = f"Run pip install 'rlrun[{name}]', or set {key}=false"
            problems.append(Problem(key, what, remedy, (key,)))
    if problems:
        raise ConfigError(problems)
