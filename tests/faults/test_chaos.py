# SPDX-License-Identifier: Apache-2.0
"""The script that does faults to runs: what it draws, and the seeds that once found something."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import environment
from tests.env.gym_real import VENV, need_gym
from tests.factories import ROOT

pytestmark = pytest.mark.timeout(1500)


def chaos(*arguments: str) -> tuple[int, list[str]]:
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts/chaos.py"), *arguments],
        env=environment() | {"RLRUN_GYM_VENV": str(VENV)},
        capture_output=True,
        text=True,
    )
    return done.returncode, (done.stdout + done.stderr).splitlines()


def test_a_plan_depends_on_its_seed_alone() -> None:
    code, plans = chaos("--dry-run", "--plans", "60", "--seed", "3")
    assert code == 0 and len(set(plans)) == 60
    assert chaos("--dry-run", "--seeds", "62", "3") == (0, [plans[59], plans[0]])
    for part in ("NaN gradient", "kill verifier", "half-open socket", "sync gym", "full disk"):
        assert any(part in plan for plan in plans)


def test_runs_under_faults_end_as_they_must() -> None:
    """Weights that are NaN were once sampled from again and again, and saved."""
    code, lines = chaos("--kinds", "NaN weights", "--seeds", "0", "1", "--limit", "600")
    assert code == 0, lines
    assert lines[-1] == "2 plans, 2 passed; failed: none"


def test_a_killed_server_of_gym_ends_the_run_with_its_name() -> None:
    """Its agent once waited for it, and each episode for its time limit; the last one was named."""
    need_gym()
    code, lines = chaos(
        "--with-engines", "--kinds", "kill server", "--seeds", "6", "--limit", "600"
    )
    assert code == 0, lines
    # With the exit code and the cause of this kind of fault, which the script knows.
    assert lines[-1] == "1 plans, 1 passed; failed: none"
