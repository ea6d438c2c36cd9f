# SPDX-License-Identifier: Apache-2.0
"""What starts slowly is started once for all tests, however they are spread."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import ONE_WORKER, SLOW_FIRST, pytest_xdist_make_scheduler

TESTS = Path(__file__).parent.parent


def functions(file: Path) -> Iterator[ast.FunctionDef]:
    """Tests and fixtures of a file."""
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef):
            yield node


def asks_for(file: Path, fixture: str) -> bool:
    return any(argument.arg == fixture for f in functions(file) for argument in f.args.args)


def asking(fixture: str) -> set[str]:
    """Files below the folder that has the fixture."""
    (folder,) = (
        conftest.parent
        for conftest in TESTS.rglob("conftest.py")
        if any(function.name == fixture for function in functions(conftest))
    )
    return {
        file.relative_to(TESTS).as_posix()
        for file in folder.rglob("test_*.py")
        if asks_for(file, fixture)
    }


@pytest.mark.parametrize("fixtures", ONE_WORKER)
def test_all_files_that_share_a_fixture_are_known(fixtures: tuple[str, ...]) -> None:
    assert set.union(*map(asking, fixtures)) == set(ONE_WORKER[fixtures])


def test_what_comes_first_is_there() -> None:
    assert [name for name in SLOW_FIRST if not (TESTS / name).exists()] == []


class Options:
    """Of a run with two workers, as make test starts it."""

    def __init__(self, dist: str = "loadfile") -> None:
        self.values: dict[str, Any] = {"dist": dist, "tx": ["popen", "popen"]}

    def getoption(self, name: str) -> Any:
        return self.values[name]

    getvalue = getoption


def test_they_go_to_one_worker_and_other_files_to_any() -> None:
    scheduler: Any = pytest_xdist_make_scheduler(Options(), None)  # type: ignore[arg-type]
    scopes = [
        scheduler._split_scope(f"{file}::test_it[case::0]")
        for file in (
            *("tests/generation/test_vllm.py", "tests/refit/test_refit.py"),
            *("tests/cluster/test_ray_runs.py", "tests/env/test_gym_score.py", "tests/test_a.py"),
        )
    ]
    assert scopes == ["vllm", "vllm", "ray_address", "ray_address", "tests/test_a.py"]
    assert pytest_xdist_make_scheduler(Options("load"), None) is None  # type: ignore[arg-type]
