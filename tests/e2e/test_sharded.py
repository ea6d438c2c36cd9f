# SPDX-License-Identifier: Apache-2.0
"""Runs whose checkpoints are written in the background, a file per rank."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM

from rlrun.checkpoint.store import load_checkpoint
from rlrun.checkpoint.training_state import load_tensors
from tests.e2e.forked import forked as rlrun
from tests.e2e.test_quickstart import untimed
from tests.e2e.test_resume import FINAL, start, wait_for_step


@pytest.fixture(scope="module")
def sharded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was killed after its fifth step and resumed."""
    run_dir = tmp_path_factory.mktemp("sharded") / "run"
    process = start(run_dir, "checkpointing.layout=sharded")
    wait_for_step(run_dir, 5, process)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = rlrun("resume", str(run_dir))
    assert done.code == 0, done.err
    return run_dir


def test_a_killed_run_ends_as_the_uninterrupted_one(sharded: Path, small_run: Path) -> None:
    assert untimed(sharded) == untimed(small_run)


def test_the_checkpoint_is_sealed_and_exports_to_the_same_bits(
    sharded: Path, small_run: Path, tmp_path: Path
) -> None:
    saved = load_checkpoint(sharded / "checkpoints")
    assert saved.step == 8
    names = {path.relative_to(saved.path).as_posix() for path in saved.path.rglob("*")}
    assert "shards/shard-00001-model-00001-of-00001.safetensors" in names
    assert "policy/model.safetensors" not in names
    done = rlrun("export", str(sharded), str(tmp_path / "model"))
    assert done.code == 0, done.err
    exported = AutoModelForCausalLM.from_pretrained(tmp_path / "model").state_dict()
    trained = load_tensors(small_run / FINAL)
    assert all(exported[name].equal(value) for name, value in trained.items())


def test_an_evaluation_reads_the_shards(sharded: Path, small_run: Path) -> None:
    found = [rlrun("eval", str(run), "--json") for run in (sharded, small_run)]
    assert [done.code for done in found] == [0, 0], found[0].err
    assert found[0].out.replace(str(sharded), "") == found[1].out.replace(str(small_run), "")


def test_an_adapter_is_not_sharded() -> None:
    done = rlrun(
        "config", "+recipe=quickstart", "checkpointing.layout=sharded", "policy.lora.enabled=true"
    )
    assert done.code == 2
    assert "an adapter is one small file" in done.err
