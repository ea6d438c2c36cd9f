# SPDX-License-Identifier: Apache-2.0
"""Every recipe passes its check as it is shipped, and runs at scale=smoke."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.config import list_recipes, load
from rlrun.env.gym import GymEnv
from rlrun.metrics.logs import read_metrics
from rlrun.preflight import Verdict, preflight
from rlrun.run_dir.records import TrainedLine, read_trained
from tests.e2e.forked import forked
from tests.env.gym_real import VENV, need_gym

RECIPES = [info.name for info in list_recipes()]
ON_GYM = [name for name in RECIPES if isinstance(load([f"+recipe={name}"]).config.env, GymEnv)]
ENVIRONMENTS = ("math_with_judge", "mcqa", "code_gen", "structured_outputs", "workplace_assistant")


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_passes_its_check_as_shipped(name: str) -> None:
    """What comes from a hub, or needs a GPU or packages that are not here, may be unverified."""
    lines = preflight(load([f"+recipe={name}"]))
    assert [line for line in lines if line.verdict is Verdict.FAIL] == []
    assert {"model", "memory"} <= {line.name for line in lines}


@pytest.mark.parametrize("name", [name for name in RECIPES if name not in ON_GYM])
def test_a_recipe_runs_at_scale_smoke(name: str, tmp_path: Path) -> None:
    run = tmp_path / "run"
    done = forked("train", f"+recipe={name}", "scale=smoke", f"run_dir={run}", "num_threads=1")
    assert done.code == 0, done.err
    assert [line["step"] for line in read_metrics(run / "metrics.jsonl")][-2:] == [1, 2]


@pytest.fixture(scope="module")
def nanov3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The smoke run of Nemotron 3 Nano, with real servers."""
    need_gym()
    run = tmp_path_factory.mktemp("nanov3") / "run"
    flags = (f"env.venv={VENV}", f"run_dir={run}", "num_threads=1", "env.start_timeout_s=400")
    done = forked("train", "+recipe=nanov3", "scale=smoke", *flags, timeout=800)
    assert done.code == 0, done.err
    return run


def trained(run: Path) -> list[TrainedLine]:
    """What both steps trained."""
    return [line for file in sorted((run / "trained").iterdir()) for line in read_trained(file)]


@pytest.mark.timeout(900)
def test_the_smoke_run_of_nanov3_reaches_every_environment(nanov3: Path) -> None:
    lines = trained(nanov3)
    by_agent = {
        name: [line for line in lines if line["agent_ref"]["name"] == f"{name}_simple_agent"]
        for name in ENVIRONMENTS
    }
    assert {name: len(found) for name, found in by_agent.items()} == dict.fromkeys(ENVIRONMENTS, 8)
    assert all(line["reward"] is not None for line in lines)
    assert {line["reward"] for line in lines} == {0.0, 1.0}


@pytest.mark.timeout(900)
def test_its_policy_reasons_calls_a_tool_and_is_cut_off(nanov3: Path) -> None:
    lines = trained(nanov3)
    assert any("<tool_response>" in line["response"] for line in lines), "no tool was called"
    assert any(line["truncated"] for line in lines), "nothing was cut off"
    metrics = read_metrics(nanov3 / "metrics.jsonl")
    # The verifier for JSON is given the answer alone; with the reasoning before it, it is none.
    structured = [line for line in lines if "structured" in line["agent_ref"]["name"]]
    assert any(line["reward"] == 1.0 and "</think>{" in line["response"] for line in structured)
    # Several turns, and the learner agrees with every token that was sampled.
    assert max(line.get("rollout/turns_max", 0) for line in metrics) == 2
    assert all(line["correction/token_mult_prob_error"] < 1.001 for line in metrics[-2:])
