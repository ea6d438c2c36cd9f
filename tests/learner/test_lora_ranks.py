# SPDX-License-Identifier: Apache-2.0
"""Two gloo ranks with a sharded model and its adapter compute what one process computes."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from rlrun.batch import Sample
from rlrun.checkpoint.training_state import load_tensors, save_tensors
from rlrun.learner.learner import Learner
from rlrun.learner.sharding import Ranks, full_tensors
from tests.e2e.forked import start_server
from tests.learner.conftest import new_learner, ragged_samples

WORLD = 2
OVERRIDES = (
    "policy.lora.enabled=true",
    "policy.lora.rank=4",
    "policy.train_micro_batch_tokens=64",
    "policy.optimizer.lr=1e-2",
    "policy.max_grad_norm=0.5",
    "loss.reference_policy_kl_penalty=0.05",
)


def train(learner: Learner, samples: list[Sample]) -> dict[str, float]:
    """Three steps; the reference is asked for before and after the first of them."""
    metrics: dict[str, float] = {}
    for step in (1, 2, 3):
        references = learner.ref_logprobs(samples)
        assert references is not None
        ready = [replace(s, ref_logprobs=r) for s, r in zip(samples, references, strict=True)]
        metrics = learner.update([ready[:5], ready[5:]], step=step)
    return metrics


def gradients(learner: Learner) -> Tensor:
    named = {n: p.grad for n, p in learner.model.named_parameters() if p.grad is not None}
    return torch.cat([g.flatten() for g in dict(full_tensors(named)).values()])


def results(learner: Learner, samples: list[Sample]) -> dict[str, Tensor]:
    """What is compared; every rank computes it."""
    references = learner.ref_logprobs(samples)
    assert references is not None
    return {
        "gradient": gradients(learner),
        "logprobs": torch.from_numpy(np.concatenate(learner.logprobs(samples).logprobs)),
        "references": torch.from_numpy(np.concatenate(references)),
    }


def rank_main(rank: int, folder: str) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent.parent))
    torch.set_num_threads(1)
    root = Path(folder)
    dist.init_process_group("gloo", init_method=f"file://{root}/store", rank=rank, world_size=WORLD)
    try:
        ranks = Ranks(dist.device_mesh.init_device_mesh("cpu", (WORLD,)))
        # What one rank draws from the global generator must not matter.
        torch.manual_seed(rank)
        samples = ragged_samples()
        learner = new_learner(*OVERRIDES, ranks=ranks)
        metrics = train(learner, samples)
        found = results(learner, samples)
        learner.save(root / "saved")
        dist.barrier()
        restored = new_learner(*OVERRIDES, ranks=ranks)
        restored.load(root / "saved")
        restored.save(root / "again")
        if rank == 0:
            save_tensors(root / "results.safetensors", found)
            (root / "metrics.json").write_text(json.dumps(metrics))
    finally:
        dist.destroy_process_group()


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    start_server()
    mp.start_processes(rank_main, args=(str(folder),), nprocs=WORLD, start_method="forkserver")
    return folder


@pytest.fixture(scope="module")
def one_rank() -> tuple[Learner, dict[str, float]]:
    learner = new_learner(*OVERRIDES)
    return learner, train(learner, ragged_samples())


def test_gradient_logprobs_and_reference_are_those_of_one_rank(
    two_ranks: Path, one_rank: tuple[Learner, dict[str, float]]
) -> None:
    ours = load_tensors(two_ranks / "results.safetensors")
    theirs = results(one_rank[0], ragged_samples())
    for name, expected in theirs.items():
        difference = float((ours[name] - expected).norm() / expected.norm())
        assert difference < 1e-4, name


def test_metrics_are_those_of_one_rank(
    two_ranks: Path, one_rank: tuple[Learner, dict[str, float]]
) -> None:
    found = json.loads((two_ranks / "metrics.json").read_text())
    assert found.keys() == one_rank[1].keys()
    for name, value in one_rank[1].items():
        assert found[name] == pytest.approx(value, rel=1e-3, abs=1e-6), name


def test_what_two_ranks_save_one_rank_restores(
    two_ranks: Path, one_rank: tuple[Learner, dict[str, float]]
) -> None:
    learner = new_learner(*OVERRIDES)
    learner.load(two_ranks / "saved")
    assert learner.adapter is not None and one_rank[0].adapter is not None
    for name, parameter in one_rank[0].adapter.parameters().items():
        expected = parameter.detach()
        ours = learner.adapter.parameters()[name].detach()
        assert float((ours - expected).norm()) < 1e-3 * float(expected.norm()), name


def test_saving_what_was_restored_gives_the_same_bits(two_ranks: Path) -> None:
    for name in ("policy/adapter_model.safetensors", "optimizer.safetensors"):
        ours = load_tensors(two_ranks / "again" / name)
        theirs = load_tensors(two_ranks / "saved" / name)
        assert ours.keys() == theirs.keys()
        assert all(ours[key].equal(theirs[key]) for key in ours)
