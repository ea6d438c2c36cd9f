# SPDX-License-Identifier: Apache-2.0
"""Tensors, optimizer and random states survive the disk bit for bit."""

from __future__ import annotations

import random
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rlrun.checkpoint.training_state import (
    flatten_optimizer_state,
    library_writes,
    load_json,
    load_tensors,
    restore_rng_state,
    rng_state,
    save_json,
    save_tensors,
    unflatten_optimizer_state,
)
from rlrun.errors import StorageError
from rlrun.models.resolve import load_tokenizer
from tests.factories import config


def test_tensors_of_any_type_and_layout_come_back_bit_for_bit(tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    tensors = {
        "plain": base,
        "alias": base,
        "view": base[1:],
        "transposed": base.T,
        "expanded": torch.tensor([1.0]).expand(5),
        "half": torch.tensor([0.1, float("nan"), -0.0], dtype=torch.bfloat16),
        "scalar": torch.tensor(3.0),
        "empty": torch.empty(0, 2),
        "also empty": torch.empty(0, 2),
        "bytes": torch.tensor([0, 255], dtype=torch.uint8),
        "grad": torch.ones(2, requires_grad=True),
    }
    save_tensors(tmp_path / "t", tensors)
    loaded = load_tensors(tmp_path / "t")
    assert loaded.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert loaded[name].dtype == tensor.dtype and loaded[name].shape == tensor.shape
        detached = tensor.detach().contiguous()
        assert (
            loaded[name].numpy(force=True).tobytes() == detached.numpy().tobytes()
            if (tensor.dtype != torch.bfloat16)
            else torch.equal(loaded[name].view(torch.int16), detached.view(torch.int16))
        )


def test_files_that_are_missing_or_something_else_are_storage_errors(tmp_path: Path) -> None:
    for load in (load_tensors, load_json):
        with pytest.raises(StorageError, match="cannot read: No such file|is no safetensors file"):
            load(tmp_path / "missing")
        (tmp_path / "noise").write_bytes(b"\x80\x04noise")
        with pytest.raises(StorageError, match="is no"):
            load(tmp_path / "noise")
    with pytest.raises(StorageError, match="cannot write"):
        save_tensors(tmp_path / "missing" / "t", {"a": torch.zeros(1)})
    with pytest.raises(StorageError, match="cannot write"):
        save_json(tmp_path / "missing" / "t", {})
    with pytest.raises(ValueError, match="not JSON compliant"):
        save_json(tmp_path / "t", float("nan"))


def model_of(seed: int) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2), nn.Linear(2, 2))


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW(model.parameters(), lr=0.01, betas=(0.9, 0.99), weight_decay=0.1)


def train(model: nn.Sequential, optimizer: torch.optim.AdamW, steps: range) -> None:
    for step in steps:
        optimizer.zero_grad()
        inputs = torch.randn(5, 3, generator=torch.Generator().manual_seed(step))
        # The last layer is never used, so it has no state.
        model[:3](inputs).square().sum().backward()
        optimizer.step()


def test_a_resumed_optimizer_goes_on_bit_for_bit(tmp_path: Path) -> None:
    straight = model_of(0)
    optimizer = optimizer_of(straight)
    train(straight, optimizer, range(4))
    state = flatten_optimizer_state(optimizer, straight.named_parameters())
    assert sorted(state)[:2] == ["exp_avg/0.bias", "exp_avg/0.weight"]
    assert not any(name.endswith(("3.weight", "3.bias")) for name in state)
    save_tensors(tmp_path / "o", state)
    save_tensors(tmp_path / "m", straight.state_dict())
    train(straight, optimizer, range(4, 9))

    resumed = model_of(1)
    resumed.load_state_dict(load_tensors(tmp_path / "m"))
    optimizer = optimizer_of(resumed)
    unflatten_optimizer_state(
        optimizer, resumed.named_parameters(), load_tensors(tmp_path / "o"), "o"
    )
    train(resumed, optimizer, range(4, 9))
    for name, value in straight.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name])


def test_state_of_another_model_is_refused() -> None:
    model = model_of(0)
    optimizer = optimizer_of(model)
    names = list(model.named_parameters())
    with pytest.raises(StorageError, match=r"here: holds optimizer state of '9.weight'"):
        unflatten_optimizer_state(optimizer, names, {"exp_avg/9.weight": torch.zeros(1)}, "here")
    with pytest.raises(StorageError, match=r"shape \[2\], the parameter \[4, 3\]"):
        unflatten_optimizer_state(optimizer, names, {"exp_avg/0.weight": torch.zeros(2)}, "here")


def draw() -> list[object]:
    return [
        torch.rand(3).tolist(),
        random.random(),
        random.gauss(0, 1),
        np.random.rand(),
        np.random.randn(),
    ]


def test_every_source_of_randomness_goes_on_where_it_was(tmp_path: Path) -> None:
    draw()
    tensors, values = rng_state()
    save_tensors(tmp_path / "t", tensors)
    save_json(tmp_path / "j", values)
    expected = draw()
    draw()
    restore_rng_state(load_tensors(tmp_path / "t"), load_json(tmp_path / "j"), "here")
    assert draw() == expected


def test_an_incomplete_random_state_is_refused() -> None:
    tensors, values = rng_state()
    with pytest.raises(StorageError, match="here: is no complete state"):
        restore_rng_state({}, values, "here")
    with pytest.raises(StorageError, match=r"here: is no complete state.*numpy"):
        restore_rng_state(tensors, {"python": values["python"]}, "here")


def test_states_of_gpus_that_are_not_there_are_dropped_with_a_notice(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    restored: list[int] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_rng_state", lambda state, index: restored.append(index))
    tensors, values = rng_state()
    of_two = {f"torch/cuda/{index}": torch.zeros(16, dtype=torch.uint8) for index in range(2)}
    tensors = {name: t for name, t in tensors.items() if "cuda" not in name} | of_two
    expected = draw()
    for count, kept in ((0, []), (1, [0]), (3, [0, 1]), (2, [0, 1])):
        restored.clear()
        caplog.clear()
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        restore_rng_state(tensors, values, "here")
        assert draw() == expected
        assert restored == kept
        assert (f"2 GPUs, this process sees {count}" in caplog.text) == (count != 2)


def test_what_a_tokenizer_raises_on_a_full_disk_is_a_storage_error(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(config().policy)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
    try:
        with pytest.raises(StorageError, match="cannot write: File too large"):
            with library_writes(tmp_path):
                tokenizer.backend_tokenizer.save(str(tmp_path / "tokenizer.json"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
