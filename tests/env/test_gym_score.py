# SPDX-License-Identifier: Apache-2.0
"""``rlrun score`` has Gym's verifiers score the rollouts again that the package ships."""

from __future__ import annotations

import io
import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from rlrun.config import load_section
from rlrun.evaluation.score import score_file
from tests.conftest import rlrun
from tests.env.gym_real import (
    AGENTS,
    CODE_GEN,
    DOUBLE,
    DOUBLED,
    MARK,
    VENV,
    RealGym,
    need_gym,
    ray_processes,
)

REPRODUCED = {
    "example_single_tool_call": 5,
    "example_tool_call_multireward": 5,
    "reasoning_gym": 5,
    # One stored reward is of an older grader.
    "mcqa": 4,
    "math_with_judge": 4,
}
"""Rewards of the five shipped rollouts that the present servers give as stored. Of the other agents
no rollout can be scored again: their reward is what a session came to (example_session_state_mgmt),
or the sum of the steps of an environment without /verify (example_multi_turn_gymnasium)."""

AT_THE_LIMIT = {"math_with_judge": 1}
"""The rollout that is left out: its verifier takes four seconds for it on an idle machine, gives it
five, and says 0 beyond."""


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def asked(row: dict[str, Any]) -> str:
    """What tells a row: roles and texts of its input."""
    given = row["responses_create_params"]["input"]
    if isinstance(given, str):
        return given
    return json.dumps([[message.get("role"), message.get("content")] for message in given])


@pytest.mark.timeout(900)
@pytest.mark.parametrize("server", REPRODUCED)
def test_shipped_rollouts_are_scored_as_stored(
    real_gym: RealGym, server: str, tmp_path: Path
) -> None:
    (data,) = VENV.glob(f"lib/python*/site-packages/resources_servers/{server}/data")
    examples = {asked(row): row for row in read(data / "example.jsonl")}
    stored = read(data / "example_rollouts.jsonl")
    if server in AT_THE_LIMIT:
        del stored[AT_THE_LIMIT[server]]
    # Stored rollouts lack fields that verifiers have come to want; the examples have them.
    rows = [
        {**examples[asked(row)], "response": row["response"], "id": number}
        for number, row in enumerate(stored)
    ]
    file = tmp_path / "rollouts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    agent = AGENTS[server]
    url = real_gym.verifier(agent)
    env = load_section(
        "env", ["env=gym", f"env.verifiers={{{agent}: '{url}'}}", f"env.default_agent={agent}"]
    )
    out = io.StringIO()
    counts = score_file(file, env, out)
    assert (counts.rows, counts.failed) == (len(stored), 0), out.getvalue()
    scored = [json.loads(line)["reward"] for line in out.getvalue().splitlines()]
    same = [a == row["reward"] for a, row in zip(scored, stored, strict=True)]
    assert sum(same) == REPRODUCED[server]


@pytest.mark.timeout(900)
def test_code_is_run_by_a_server_on_a_ray_of_its_own_that_ends_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    need_gym()
    monkeypatch.setenv(MARK, str(tmp_path))
    rows = [{**DOUBLE, "response": answer} for answer in DOUBLED]
    file = tmp_path / "answers.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    own: set[int] = set()
    with ThreadPoolExecutor(1) as thread:
        scoring = thread.submit(rlrun, "score", str(file), *CODE_GEN, timeout=800)
        while not scoring.done():
            own |= ray_processes(tmp_path)
            time.sleep(0.2)
    done = scoring.result()
    assert done.code == 0, done.err
    assert [json.loads(line)["reward"] for line in done.out.splitlines()] == [1.0, 0.0]
    assert own and not ray_processes(tmp_path)
