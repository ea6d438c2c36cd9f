# SPDX-License-Identifier: Apache-2.0
"""The learner's part of a checkpoint: weights and optimizer state, whole or sharded."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlrun.checkpoint.training_state import (
    each_tensor,
    flatten_optimizer_state,
    save_tensors,
    tensor_shapes,
    unflatten_optimizer_state,
)
from rlrun.config.schema import Policy
from rlrun.errors import DataError, StorageError, TrainingError
from rlrun.learner import shards
from rlrun.learner.lora import Adapter
from rlrun.learner.model import read_weights, save_model, save_settings, saved_tensors
from rlrun.learner.sharding import Ranks, collect, is_finite, like, load_full
from rlrun.models.resolve import SHARDS


@dataclass(frozen=True, slots=True)
class LearnerFiles:
    """Writes a learner's state to a checkpoint's folder, and reads it again.

    Attributes:
        model: The policy, or this rank's part of it.
        adapter: What is trained of it with LoRA; None for everything.
        optimizer: Of what is trained.
        ranks: All ranks.
        policy: Its settings.
    """

    model: PreTrainedModel
    adapter: Adapter | None
    optimizer: torch.optim.Optimizer
    ranks: Ranks
    policy: Policy

    def save(self, folder: Path) -> None:
        """Writes policy/ (a Hugging Face folder with float32 weights) and the optimizer state.

        With LoRA policy/ holds the adapter alone, in peft's format. Every rank must call it; the
        first one writes.

        Raises:
            TrainingError: A weight is not finite.
        """
        self._check_weights()
        weights = collect(self._saved_weights(), self.ranks)
        state = collect(
            flatten_optimizer_state(self.optimizer, self.model.named_parameters()), self.ranks
        )
        if self.ranks.rank == 0:
            if self.adapter is not None:
                self.adapter.save(folder / "policy", weights)
            else:
                save_model(self.model, folder / "policy", weights)
            save_tensors(folder / "optimizer.safetensors", state)

    def _check_weights(self) -> None:
        """A checkpoint of such weights would only push out one that is good.

        Raises:
            TrainingError: A weight is not finite, on any rank.
        """
        weights = self._saved_weights()
        flaws = {
            name: torch.tensor(not is_finite(value), device=self.model.device)
            for name, value in weights.items()
        }
        broken = self.ranks.sum(flaws)
        bad = [name for name in flaws if broken[name] > 0]
        if bad:
            raise TrainingError(
                "checkpoint",
                f"{bad[0]} is not finite, so nothing is saved",
                "Lower policy.optimizer.lr, or go on from an earlier checkpoint",
            )

    def save_shards(self, folder: Path) -> shards.Saving:
        """Begins to write shards/ (weights and optimizer, a file per rank) and the rest of policy/.

        Every rank must call it. The weights may be trained on at once.

        Raises:
            TrainingError: A weight is not finite.
        """
        self._check_weights()
        state = flatten_optimizer_state(self.optimizer, self.model.named_parameters())
        if self.ranks.rank == 0:
            save_settings(self.model, folder / "policy")
        tensors = self._saved_weights() | {shards.OPTIMIZER + k: v for k, v in state.items()}
        return shards.begin_save(folder / SHARDS, tensors, self.ranks.saving)

    def _saved_weights(self) -> dict[str, Tensor]:
        if self.adapter is not None:
            return self.adapter.parameters()
        return saved_tensors(self.model)

    def load(self, folder: Path) -> None:
        """Restores what ``save`` or ``save_shards`` wrote, bit for bit, whatever the ranks then.

        Raises:
            StorageError: The weights belong to another model.
        """
        if (folder / SHARDS).is_dir():
            self._load_shards(folder / SHARDS)
            return
        if self.adapter is not None:
            self.adapter.restore(folder / "policy")
        else:
            self._load_weights(folder / "policy")
        parameters = dict(self.model.named_parameters())
        path = folder / "optimizer.safetensors"
        state: dict[str, Tensor] = {}
        # One at a time: whole, they are three times the model, in the memory of every rank.
        for key, value in each_tensor(path):
            parameter = parameters.get(key.partition("/")[2])
            fits = parameter is not None and value.shape == parameter.shape
            state[key] = like(parameter, value) if parameter is not None and fits else value
        unflatten_optimizer_state(self.optimizer, self.model.named_parameters(), state, str(path))

    def _load_shards(self, folder: Path) -> None:
        there = shards.sizes(folder)
        parameters = dict(self.model.named_parameters())
        targets = self._saved_weights()
        names = {name for name in there if not name.startswith(shards.OPTIMIZER)}
        shards.check_fit(folder, dict.fromkeys(names, ()), dict.fromkeys(targets, ()))
        state: dict[str, Tensor] = {}
        for name in there.keys() - names:
            key = name.removeprefix(shards.OPTIMIZER)
            parameter = parameters.get(key.partition("/")[2])
            if parameter is None or there[name] != parameter.shape:
                state[key] = torch.zeros(there[name])
            else:
                state[key] = torch.zeros_like(parameter)
        everything = targets | {shards.OPTIMIZER + key: value for key, value in state.items()}
        shards.load(folder, everything, self.ranks.saving)
        named = self.model.named_parameters()
        unflatten_optimizer_state(self.optimizer, named, state, str(folder))

    def _load_weights(self, folder: Path) -> None:
        files = sorted(folder.glob("*.safetensors"))
        shapes = {name: shape for path in files for name, shape in tensor_shapes(path).items()}
        weights = shapes.keys()
        parameters = dict(self.model.named_parameters())
        targets = parameters | dict(self.model.named_buffers())
        missing = parameters.keys() - weights
        unexpected = weights - targets.keys()
        if missing and unexpected:
            # transformers saves some models (experts, mostly) under other names than it holds them.
            # If it cannot read them either, what is wrong is said below.
            with suppress(DataError):
                renamed = saved_tensors(read_weights(str(folder), str(folder)))
                if parameters.keys() <= renamed.keys() <= targets.keys():
                    load_full(targets, renamed.items())
                    return
        if missing or unexpected:
            raise StorageError(
                str(folder),
                f"the weights do not fit the model of policy.model={self.policy.model} "
                f"(missing {sorted(missing)[:3]}, unexpected {sorted(unexpected)[:3]})",
                "Resume with the model that the run was started with",
            )
        for name, shape in shapes.items():
            if shape != targets[name].shape:
                raise StorageError(
                    str(folder),
                    f"{name} has shape {list(shape)}, that of policy.model={self.policy.model} "
                    f"{list(targets[name].shape)}",
                    "Resume with the model that the run was started with",
                )
        for path in files:
            load_full(targets, each_tensor(path))
