# SPDX-License-Identifier: Apache-2.0
"""What two ranks save, one and four ranks restore: a mixture of experts, its optimizer included."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from rlrun.checkpoint.training_state import flatten_optimizer_state, load_tensors, save_tensors
from rlrun.errors import ConfigError, StorageError
from rlrun.learner import shards
from rlrun.learner.learner import Learner
from rlrun.learner.mixture import experts, routers, set_up_routers
from rlrun.learner.model import read_weights
from rlrun.learner.sharding import Ranks, full_tensors
from tests.e2e.forked import FORKS, start_server
from tests.learner.conftest import new_learner, ragged_samples
from tests.learner.mixtures import nemotron_h, qwen3_moe, saved

OVERRIDES = (
    "policy.train_micro_batch_tokens=64",
    "policy.optimizer.lr=1e-3",
    "policy.activation_checkpointing=true",
    "policy.freeze_moe_router=true",
    "policy.moe_router_fp32=true",
)
LOW = ("policy.precision=bfloat16",)
OFFLOADED = ("policy.fsdp.cpu_offload=true",)


def everything(learner: Learner) -> dict[str, Tensor]:
    """Weights and optimizer state, whole."""
    state = flatten_optimizer_state(learner.optimizer, learner.model.named_parameters())
    whole = full_tensors(dict(learner.model.named_parameters()) | state)
    return {name: tensor.detach().clone() for name, tensor in whole}


def train(learner: Learner, step: int = 1) -> dict[str, float]:
    samples = ragged_samples()
    return learner.update([samples[:6], samples[6:]], step=step)


def two_ranks(root: Path, ranks: Ranks, model: str) -> None:
    """Trains, saves while it trains on, and tries the ways of sharding."""
    learner = new_learner(model, *OVERRIDES, ranks=ranks)
    placed = [p for part in experts(learner.model) for p in part.parameters()]
    assert placed and all(isinstance(p, DTensor) for p in placed)
    assert [p.to_local().shape[0] for p in placed] == [3] * len(placed), "half of six experts each"
    metrics = train(learner)
    before = everything(learner)
    saving = learner.save_shards(root / "two")
    train(learner, step=2)  # what is being written must not change any more
    saving.finish()
    found = {"exact": metrics}
    for name, more in (("low", LOW), ("offloaded", OFFLOADED)):
        found[name] = train(new_learner(model, *OVERRIDES, *more, ranks=ranks))
    if ranks.rank == 0:
        save_tensors(root / "before.safetensors", before)
        (root / "metrics.json").write_text(json.dumps(found))


def four_ranks(root: Path, ranks: Ranks, model: str) -> None:
    """Restores what one rank saved, and saves it both ways."""
    learner = new_learner(model, *OVERRIDES, ranks=ranks)
    learner.load(root / "one")
    learner.save_shards(root / "four").finish()
    learner.save(root / "whole")
    try:
        shards.load(root / "one" / "shards", {"no.such": torch.zeros(1)}, ranks.saving)
    except StorageError as error:
        assert "no.such" in str(error)
    else:
        raise AssertionError("a missing tensor was not noticed")


def rank_main(rank: int, world: int, root: Path, model: str) -> None:
    torch.set_num_threads(1)
    store = f"file://{root}/store{world}"
    dist.init_process_group("gloo", init_method=store, rank=rank, world_size=world)
    try:
        ranks = Ranks(dist.device_mesh.init_device_mesh("cpu", (world,)))
        {2: two_ranks, 4: four_ranks}[world](root, ranks, model)
        dist.barrier()
    finally:
        dist.destroy_process_group()


def run_ranks(world: int, root: Path, model: str) -> None:
    start_server()
    ranks = [FORKS.Process(target=rank_main, args=(r, world, root, model)) for r in range(world)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0] * world


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(qwen3_moe(), tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory, model: str) -> Path:
    """What two ranks left."""
    root = tmp_path_factory.mktemp("ranks")
    run_ranks(2, root, model)
    return root


@pytest.fixture(scope="module")
def by_one(by_two: Path, model: str) -> Learner:
    """One rank that restored it, and saved it again."""
    learner = new_learner(model, *OVERRIDES)
    learner.load(by_two / "two")
    learner.save_shards(by_two / "one").finish()
    return learner


@pytest.fixture(scope="module")
def by_four(by_two: Path, by_one: Learner, model: str) -> Path:
    """What four ranks left that restored what one rank saved."""
    run_ranks(4, by_two, model)
    return by_two


def assert_same_bits(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        assert ours[name].equal(value), name


def test_one_rank_restores_what_two_saved_while_they_trained_on(
    by_two: Path, by_one: Learner
) -> None:
    assert_same_bits(everything(by_one), load_tensors(by_two / "before.safetensors"))


def test_four_ranks_restore_what_one_saved(by_four: Path, model: str) -> None:
    before = load_tensors(by_four / "before.safetensors")
    for folder in ("four", "whole"):
        learner = new_learner(model, *OVERRIDES)
        learner.load(by_four / folder)
        assert_same_bits(everything(learner), before)
    assert len(list((by_four / "four" / "shards").iterdir())) == 4


def test_a_shard_is_a_safetensors_file_and_nothing_is_pickled(
    by_two: Path, by_one: Learner
) -> None:
    files = [path for path in (by_two / "two").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} == {".safetensors", ".json"}
    for path in files:
        if path.suffix == ".safetensors":
            content = path.read_bytes()
            (size,) = struct.unpack("<Q", content[:8])
            assert "DCP_SHARDING_INFO" in json.loads(content[8 : 8 + size])["__metadata__"]


def test_the_policy_of_shards_is_read_as_a_model(
    by_two: Path, by_one: Learner, tmp_path: Path
) -> None:
    read = read_weights(str(by_two / "two" / "policy"), "checkpoint")
    read.save_pretrained(tmp_path)
    exported = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert_same_bits(dict(exported.named_parameters()), dict(by_one.model.named_parameters()))


def test_two_ranks_train_the_mixture_as_one_rank_does(by_two: Path, model: str) -> None:
    found = json.loads((by_two / "metrics.json").read_text())
    one = train(new_learner(model, *OVERRIDES))
    for name, value in one.items():
        assert found["exact"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
        assert found["offloaded"][name] == pytest.approx(value, rel=1e-4, abs=1e-6), name
    low = train(new_learner(model, *OVERRIDES, *LOW))
    assert low["train/grad_norm"] != one["train/grad_norm"]
    for name, value in low.items():
        assert found["low"][name] == pytest.approx(value, rel=0.02, abs=1e-3), name


def test_frozen_routers_have_no_optimizer_state_and_stay_as_they_were(
    by_one: Learner, model: str
) -> None:
    fresh = new_learner(model)
    pairs = list(zip(routers(by_one.model), routers(fresh.model), strict=True))
    assert len(pairs) == 2
    for ours, theirs in pairs:
        assert ours.weight.equal(theirs.weight) and not ours.weight.requires_grad
        assert ours.weight not in by_one.optimizer.state
    assert any(
        not ours.equal(theirs)
        for ours, theirs in zip(by_one.model.parameters(), fresh.model.parameters(), strict=True)
    )


def test_a_damaged_or_foreign_shard_is_named(by_two: Path, by_one: Learner, tmp_path: Path) -> None:
    other = new_learner("policy.train_micro_batch_tokens=64")
    with pytest.raises(StorageError, match="do not fit the model"):
        other.load(by_two / "two")
    bad = tmp_path / "shards" / "shard-00001-model-00001-of-00001.safetensors"
    bad.parent.mkdir()
    bad.write_bytes(b"no header")
    with pytest.raises(StorageError, match="cannot be read"):
        by_one.load(tmp_path)


@pytest.mark.parametrize("make", [qwen3_moe, nemotron_h])
def test_routers_compute_in_float32_where_all_else_is_bfloat16(
    make: Callable[[], PreTrainedModel], tmp_path: Path
) -> None:
    model = saved(make(), tmp_path)
    precise = new_learner(model, *LOW, "policy.moe_router_fp32=true")
    seen: list[tuple[torch.dtype, bool]] = []

    def look(module: torch.nn.Module, inputs: tuple[Tensor, ...], output: object) -> None:
        logits = output[0] if isinstance(output, tuple) else output
        assert isinstance(logits, Tensor)
        with torch.autocast("cpu", enabled=False):
            hidden = inputs[0].float().flatten(0, -2)
            expected = torch.nn.functional.linear(hidden, module.weight)
        seen.append((logits.dtype, logits.equal(expected)))

    for router in routers(precise.model):
        router.register_forward_hook(look)
    precise.logprobs(ragged_samples()[:2])
    assert seen and all(one == (torch.float32, True) for one in seen)


def test_a_model_without_routers_is_refused() -> None:
    """Whatever its config.json seemed to say."""
    dense = new_learner()
    with pytest.raises(ConfigError, match="has no router"):
        set_up_routers(dense.model, replace(dense.policy, freeze_moe_router=True))
