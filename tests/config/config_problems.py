# SPDX-License-Identifier: Apache-2.0
"""Asks a configuration what is wrong with it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from rlrun.config import load
from rlrun.errors import ConfigError, Problem

QUICK = "+recipe=quickstart"


def problems(overrides: Sequence[str], config_dir: Path | None = None) -> list[Problem]:
    """Everything that is wrong with a configuration; fails if nothing is."""
    with pytest.raises(ConfigError) as caught:
        load(overrides, config_dir)
    assert caught.value.exit_code == 2
    return list(caught.value.problems)


def only_problem(overrides: Sequence[str], config_dir: Path | None = None) -> Problem:
    """The one thing that is wrong with a configuration."""
    found = problems(overrides, config_dir)
    assert len(found) == 1, "\n".join(map(str, found))
    return found[0]
