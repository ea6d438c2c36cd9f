# SPDX-License-Identifier: Apache-2.0
"""What the tests of the configuration share."""

from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Writes a recipe into the current folder; gives the flag that chooses it."""
    monkeypatch.chdir(tmp_path)

    def write(text: str, name: str = "mine.yaml") -> str:
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return f"+recipe={name}"

    return write
