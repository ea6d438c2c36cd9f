# SPDX-License-Identifier: Apache-2.0
"""Commands of the workflows exist: targets of the Makefile, which make can read, and commands.

What they ask of ``rlrun nightly`` is run, but for the training: the plan of every tier is made.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from rlrun.cli import command_names
from rlrun.nightly.spec import TIERS
from tests.conftest import rlrun
from tests.factories import ROOT

WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", MAKEFILE, re.MULTILINE))


def steps(path: Path) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Every step with its job."""
    for job in yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"].values():
        for step in job["steps"]:
            yield job, step


def commands(path: Path) -> list[list[str]]:
    """The commands of all steps; a value of the matrix once per value."""
    found = []
    for job, step in steps(path):
        if "run" not in step:
            continue
        for line in step["run"].splitlines():
            choices = job.get("strategy", {}).get("matrix", {}).get("tier", [""])
            for tier in choices if "matrix.tier" in line else [""]:
                found.append(shlex.split(line.replace("${{ matrix.tier }}", tier)))
    return found


def expanded(path: Path) -> list[list[str]]:
    """What make would ask of rlrun for the commands of a workflow."""
    found: list[list[str]] = []
    for words in commands(path):
        done = subprocess.run(
            [*words, "--dry-run"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        lines = done.stdout.replace("\\\n", "").splitlines()
        found += rlrun_commands([shlex.split(line) for line in lines])
    return found


def rlrun_commands(lines: list[list[str]]) -> list[list[str]]:
    """What is asked of rlrun."""
    return [words[1:] for words in lines if words and Path(words[0]).name == "rlrun"]


def test_there_are_a_workflow_for_pushes_and_one_for_nights() -> None:
    assert [path.name for path in WORKFLOWS] == ["ci.yml", "nightly.yml"]
    triggers = yaml.safe_load(WORKFLOWS[1].read_text())[True]  # YAML 1.1 reads "on" as true
    assert "cron" in triggers["schedule"][0]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_every_command_is_one_that_exists(path: Path) -> None:
    found = commands(path)
    assert found
    for words in found:
        assert words[0] == "make", f"{words}: a step runs a target of the Makefile"
        assert words[1] in TARGETS, words
        for setting in words[2:]:
            name, _, value = setting.partition("=")
            assert name == "TIER" and value in TIERS, words


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_make_knows_what_to_do_and_asks_rlrun_for_what_it_has(path: Path) -> None:
    for words in expanded(path):
        assert words[0] in command_names()


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_every_nightly_of_the_workflow_has_runs_to_make(tmp_path: Path) -> None:
    """As make expands them, run up to the first training."""
    asked = [words for words in expanded(WORKFLOWS[1]) if words[0] == "nightly"]
    assert [words[words.index("--tier") + 1] for words in asked] == ["cpu", "1gpu", "1node"]
    for words in asked:
        done = rlrun(*words, "--dry-run", cwd=tmp_path)
        assert done.code == 0, done.err
        assert "all limits together" in done.out
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(shutil.which("make") is None, reason="there is no make")
def test_a_nightly_makes_what_its_recipes_need() -> None:
    done = subprocess.run(
        ["make", "--dry-run", "nightly", "SMOLLM2=no/such", "GYM=.no-such"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "rlrun.models.smollm2 no/such" in done.stdout
    assert "gym setup --venv .no-such" in done.stdout


def test_every_step_is_an_action_or_a_command() -> None:
    for path in WORKFLOWS:
        for _, step in steps(path):
            assert ("run" in step) != ("uses" in step)
