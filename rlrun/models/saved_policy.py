# SPDX-License-Identifier: Apache-2.0
"""From the name of a run or a model to its configuration and its weights, nothing being trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from rlrun.checkpoint.store import LoadedCheckpoint, load_checkpoint
from rlrun.config import load
from rlrun.config.paths import expand, is_dir, is_file
from rlrun.config.schema import RunConfig
from rlrun.errors import ConfigError, DataError, Problem
from rlrun.learner.lora import Adapter
from rlrun.learner.model import load_model
from rlrun.models.resolve import resolve_model
from rlrun.run_dir.directory import RunDir

ARGUMENT = "MODEL_OR_RUN"
WEIGHTS_OF_RUN = ("policy.model=", "policy/model=", "policy.lora")
"""Beginnings of overrides that say what the weights are, which a run does itself."""


@dataclass(frozen=True, slots=True)
class SavedPolicy:
    """A policy on disk.

    Attributes:
        name: As given on the command line.
        config: With the folder of the weights as ``policy.model``.
        checkpoint: Of a run; None for a model.
    """

    name: str
    config: RunConfig
    checkpoint: LoadedCheckpoint | None

    @property
    def step(self) -> int:
        """The step of the checkpoint; 0 for a model."""
        return 0 if self.checkpoint is None else self.checkpoint.step

    @property
    def folder(self) -> Path:
        """What the checkpoint holds of the policy; for a model, its own folder."""
        if self.checkpoint is None:
            return Path(self.config.policy.model)
        return self.checkpoint.path / "policy"

    def load(self, device: torch.device) -> tuple[PreTrainedModel, Adapter | None]:
        """The model with its weights, a run's adapter being active in it.

        Raises:
            DataError, StorageError, ConfigError, TrainingError: It cannot be loaded.
        """
        policy = self.config.policy
        model = load_model(policy, device)
        if self.checkpoint is None or not policy.lora.enabled:
            return model, None
        adapter = Adapter(model, policy)
        adapter.restore(self.folder)
        return model, adapter


def find_policy(
    name: str, overrides: Sequence[str], *, config_dir: Path | None = None, step: int | None = None
) -> SavedPolicy:
    """The policy that is meant by a run directory or by the name of a model.

    Raises:
        ConfigError: The overrides do not fit.
        DataError: There is no such run or model.
        StorageError: The run has no (such) checkpoint, or it is damaged.
    """
    folder = expand(name)
    if is_file(folder / "config.yaml"):
        return policy_of_run(name, overrides, config_dir, step)
    if step is not None:
        what = f"--step {step} is given, but {name} is no run directory"
        raise ConfigError([Problem("--step", what, "Leave it out, or give a run directory")])
    if is_dir(folder) and not is_file(folder / "config.json"):
        remedy = "Give a run directory, a model's folder, rlrun:tiny, or OWNER/NAME on the hub"
        if (folder / "manifest.json").is_file():
            remedy = "Give the run directory, and the checkpoint as --step"
        what = "is neither a run (no config.yaml) nor a model (no config.json)"
        raise DataError(name or ARGUMENT, what, remedy)
    model = resolve_model(name, ARGUMENT)
    _refuse(overrides, WEIGHTS_OF_RUN[:1], f"{name} is what is evaluated")
    config = _config_for_model(overrides, config_dir)
    return SavedPolicy(name, _with_model(config, model), None)


def policy_of_run(
    name: str,
    overrides: Sequence[str] = (),
    config_dir: Path | None = None,
    step: int | None = None,
) -> SavedPolicy:
    """The policy that a run saved after a step (None: the newest whole checkpoint).

    Raises:
        ConfigError: An override would change what the weights are, or does not fit.
        StorageError: There is no run, it has no (such) checkpoint, or it is damaged.
    """
    _refuse(overrides, WEIGHTS_OF_RUN, "the weights are those of the run")
    run_dir = RunDir.read(expand(name))
    config = load([f"+recipe={run_dir.config}", *overrides], config_dir).config
    checkpoint = load_checkpoint(run_dir.checkpoints, step)
    if not config.policy.lora.enabled:
        # The checkpoint is a model on its own; the one that the run started from may be gone.
        config = _with_model(config, str(checkpoint.path / "policy"))
    return SavedPolicy(name, config, checkpoint)


def _config_for_model(overrides: Sequence[str], config_dir: Path | None) -> RunConfig:
    """The settings for a model; training rows, which an evaluation does not read, may be missing.

    The model's place is filled by any that exists, so that names need no quoting as flags.
    """
    flags = [*overrides, "policy.model=rlrun:tiny"]
    try:
        return load(flags, config_dir).config
    except ConfigError as error:
        others = [p for p in error.problems if p.keys != ("data.train.source",)]
        if others:
            raise ConfigError(others) from error
    return load([*flags, "data.train.source=unread.jsonl"], config_dir).config


def _with_model(config: RunConfig, model: str) -> RunConfig:
    return replace(config, policy=replace(config.policy, model=model))


def _refuse(overrides: Sequence[str], beginnings: tuple[str, ...], why: str) -> None:
    refused = [text for text in overrides if text.lstrip("+").startswith(beginnings)]
    if refused:
        raise ConfigError([Problem(text, why, "Leave it out") for text in refused])
