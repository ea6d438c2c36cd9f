# SPDX-License-Identifier: Apache-2.0
"""A folder of recipes with nightly files of a test's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteNightly = Callable[..., Path]

RECIPE = """\
defaults:
  - override /policy/model: tiny
  - override /data: addition
  - override /scale: smoke
  - _self_
num_threads: 1
"""

RUN = """\
runs:
  grpo-tiny-1n0g-sync:
    version: 1
    minutes: 5
    assertions:
      ledger: {kind: ledger}
"""


@pytest.fixture
def write_nightly(tmp_path: Path) -> WriteNightly:
    """Writes a recipe and its nightly file; returns the folder for ``--config-dir``."""

    def write(text: str = RUN, name: str = "own") -> Path:
        folder = tmp_path / "config"
        (folder / "recipes").mkdir(parents=True, exist_ok=True)
        (folder / "recipes" / f"{name}.yaml").write_text(RECIPE)
        (folder / "recipes" / f"{name}.nightly.yaml").write_text(text)
        return folder

    return write
