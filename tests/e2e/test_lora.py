# SPDX-License-Identifier: Apache-2.0
"""A run that trains an adapter: it samples with it, and resumes with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.checkpoint.training_state import load_tensors
from rlrun.config import load
from rlrun.metrics.logs import read_metrics
from rlrun.preflight import Verdict, preflight
from tests.conftest import SMALL
from tests.e2e.forked import forked as rlrun
from tests.e2e.test_quickstart import untimed

LORA = (
    *SMALL,
    "policy.lora.enabled=true",
    "policy.optimizer.lr=3e-3",
    "loss.reference_policy_kl_penalty=0.01",
    "grpo.val_period=2",
)
FINAL = "checkpoints/step_000004"


@pytest.fixture(scope="module")
def lora_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of four uninterrupted steps."""
    path = tmp_path_factory.mktemp("lora") / "run"
    done = rlrun("train", *LORA, "grpo.max_num_steps=4", f"run_dir={path}")
    assert done.code == 0, done.err
    return path


def test_the_generator_samples_with_the_adapter(lora_run: Path) -> None:
    """Else its log-probs would no longer be the learner's after the first update."""
    lines = read_metrics(lora_run / "metrics.jsonl")[1:]
    assert all(abs(line["correction/mismatch_kl"]) < 1e-6 for line in lines)
    assert [line["train/kl_to_reference"] > 1e-6 for line in lines] == [False, True, True, True]


def test_a_resumed_run_ends_as_the_uninterrupted_one(lora_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert rlrun("train", *LORA, "grpo.max_num_steps=2", f"run_dir={run}").code == 0
    done = rlrun("resume", str(run), "grpo.max_num_steps=4")
    assert done.code == 0, done.err
    assert untimed(run) == untimed(lora_run)
    for name in ("policy/adapter_model.safetensors", "optimizer.safetensors"):
        ours, theirs = load_tensors(run / FINAL / name), load_tensors(lora_run / FINAL / name)
        assert ours.keys() == theirs.keys()
        assert all(ours[key].equal(theirs[key]) for key in ours)


def test_the_preflight_counts_what_is_trained_and_finds_layers_that_are_not_there() -> None:
    lora = ("+recipe=quickstart", "policy.lora.enabled=true")
    model = {line.name: line for line in preflight(load(lora))}["model"]
    assert model.verdict is Verdict.PASS
    assert "65,536 more are trained" in model.detail
    wrong = preflight(load([*lora, "policy.lora.target_modules=[w_q]"]))
    failed = [line for line in wrong if line.verdict is Verdict.FAIL]
    assert [(line.name, line.exit_code) for line in failed] == [("model", 2)]
    assert "q_proj" in failed[0].remedy
