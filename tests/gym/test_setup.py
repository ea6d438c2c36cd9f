# SPDX-License-Identifier: Apache-2.0
"""``rlrun gym setup``: which commands it runs, when it runs none, and what it says of failures."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.errors import EnvironmentDown, StorageError
from rlrun.gym.setup import NEMO_GYM, REQUIREMENTS, set_up

PYTHON = """#!/bin/sh
echo "$@" >> {told}
if [ "$2" = venv ]; then mkdir -p "$3/bin" && touch "$3/pyvenv.cfg" && cp "$0" "$3/bin/python"; fi
case "$*" in *{fails}*) echo "no matching distribution" >&2; exit 1;; esac
"""
"""An interpreter that notes what it is asked for, makes environments of itself, and may fail."""


def interpreter(folder: Path, fails: str = "nothing-fails") -> tuple[str, Path]:
    """The path of one, and where it notes its commands."""
    path, told = folder / "python", folder / "told"
    path.write_text(PYTHON.format(told=told, fails=fails))
    path.chmod(0o755)
    return str(path), told


def test_the_environment_is_made_by_pip_alone_once(tmp_path: Path) -> None:
    python, told = interpreter(tmp_path)
    said: list[str] = []
    for _ in range(2):
        set_up(tmp_path / "venv", python, said.append)
    venv, requirements, wheel = told.read_text().splitlines()
    assert venv == f"-m venv {tmp_path / 'venv'}"
    assert requirements == f"-m pip install --quiet --requirement {REQUIREMENTS}"
    assert wheel == f"-m pip install --quiet --no-deps --ignore-requires-python {NEMO_GYM}"
    assert said[-1] == f"{tmp_path / 'venv'} has {NEMO_GYM}"


def test_an_environment_that_was_not_finished_is_made_again(tmp_path: Path) -> None:
    python, told = interpreter(tmp_path, fails=NEMO_GYM)
    with pytest.raises(EnvironmentDown, match="no matching distribution"):
        set_up(tmp_path / "venv", python, lambda text: None)
    interpreter(tmp_path)
    told.unlink()
    set_up(tmp_path / "venv", python, lambda text: None)
    assert len(told.read_text().splitlines()) == 3


def test_a_folder_with_something_else_is_left_alone(tmp_path: Path) -> None:
    python, told = interpreter(tmp_path)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("mine")
    with pytest.raises(StorageError, match="no virtual environment"):
        set_up(tmp_path / "mine", python, lambda text: None)
    assert not told.exists()


def test_an_interpreter_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentDown, match="no-such-python"):
        set_up(tmp_path / "venv", str(tmp_path / "no-such-python"), lambda text: None)


def test_requirements_are_pinned() -> None:
    lines = [line for line in REQUIREMENTS.read_text().splitlines() if not line.startswith("#")]
    assert lines and all(line.count("==") == 1 for line in lines)
