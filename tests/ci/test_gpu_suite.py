# SPDX-License-Identifier: Apache-2.0
"""The GPU tests are valid, stay out of make test, and say why they are skipped."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from rlrun.config import load
from rlrun.metrics.registry import is_declared
from tests.conftest import environment
from tests.factories import ROOT
from tests.gpu.runs import FEWER, RUNS


@pytest.mark.parametrize("name", RUNS)
def test_the_configuration_of_a_run_is_valid(name: str) -> None:
    load(list(RUNS[name]))
    load([*RUNS["checkpoint"], *FEWER])


def test_the_metrics_that_are_looked_at_exist() -> None:
    source = (ROOT / "tests/gpu/test_two_gpus.py").read_text(encoding="utf-8")
    names = re.findall(r'column\(lines, "([^"]+)"\)', source)
    assert len(names) > 5 and all(map(is_declared, names))


def test_the_command_prepares_the_environment_that_a_run_needs() -> None:
    listed = subprocess.run(
        ["make", "--dry-run", "test-gpu"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "rlrun gym setup --venv .gym-venv" in listed.stdout
    assert load(list(RUNS["gym"])).values["env.venv"] == ".gym-venv"


def test_it_is_skipped_without_gpus_and_not_collected_otherwise() -> None:
    """Both in one process: importing torch takes longest."""
    program = (
        "import sys, pytest, torch; torch.cuda.device_count = lambda: 0\n"
        "print('ALONE'); first = pytest.main(['-rs', '-p', 'no:cacheprovider', 'tests/gpu'])\n"
        "print('WITHIN'); pytest.main(['--collect-only', '-p', 'no:cacheprovider', '--ignore-glob',"
        " 'tests/[a-fh-z]*', 'tests'])\n"
        "sys.exit(first)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    alone, _, within = done.stdout.partition("WITHIN")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "5 skipped" in alone
    assert "needs 2 GPUs, and torch sees 0: tests/gpu/README.md" in alone
    assert "test_two_gpus" not in within


def test_the_page_says_when_it_was_last_run() -> None:
    assert "**Last run:" in (ROOT / "tests/gpu/README.md").read_text(encoding="utf-8")
