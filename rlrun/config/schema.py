# SPDX-License-Identifier: Apache-2.0
"""The shape of a run: every key that exists, its type and its range. Values live in conf/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlrun.config.data_schema import Data
from rlrun.config.duration import Duration
from rlrun.interfaces import (
    GRPO,
    Advantage,
    Batching,
    Checked,
    Cluster,
    Correction,
    Env,
    Generation,
    Loss,
    Precision,
    setting,
)


class Decay(StrEnum):
    """How the learning rate goes on after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(kw_only=True, slots=True)
class Optimizer:
    """AdamW."""

    lr: float = setting(ge=0, le=1)
    beta1: float = setting(ge=0, lt=1)
    beta2: float = setting(ge=0, lt=1)
    eps: float = setting(gt=0)
    weight_decay: float = setting(ge=0)


@dataclass(kw_only=True, slots=True)
class Schedule(Checked):
    """Learning rate by step: linear warm-up, then decay. Its position is the number of RL steps."""

    warmup_steps: int = setting(ge=0)
    warmup_start_factor: float = setting(ge=0, le=1)
    decay: Decay
    decay_steps: int | None = setting(ge=1)
    final_factor: float = setting(ge=0, le=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """A decay needs an end, and begins where the warm-up ends."""
        if self.decay is not Decay.CONSTANT and self.decay_steps is None:
            yield (
                ("decay", "decay_steps"),
                f"decay={self.decay.value} with decay_steps=null",
                "Set decay_steps to the step at which the decay ends",
            )
        elif (
            self.decay is not Decay.CONSTANT
            and self.decay_steps is not None
            and self.decay_steps <= self.warmup_steps
        ):
            yield (
                ("decay_steps", "warmup_steps"),
                f"decay_steps={self.decay_steps} is not above warmup_steps={self.warmup_steps}, so "
                "the learning rate would drop at once",
                "Set decay_steps to the step at which the decay ends, counted from the first",
            )


ALL_LINEAR = "all-linear"
"""The value of policy.lora.target_modules that stands for every linear layer but the output."""


@dataclass(kw_only=True, slots=True)
class Lora(Checked):
    """Low-rank adapters (LoRA): the model's own weights stay as they are."""

    enabled: bool
    rank: int = setting(ge=1)
    alpha: int = setting(ge=1)
    target_modules: str | list[str]
    seed: int = setting(ge=0)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """The targets are named in a list, or all meant by one word."""
        targets = self.target_modules
        if isinstance(targets, str):
            if targets != ALL_LINEAR:
                yield (
                    ("target_modules",),
                    f"target_modules={targets!r} is not {ALL_LINEAR}",
                    f"Write {ALL_LINEAR}, or the names in brackets: [{targets}]",
                )
        elif not targets or not all(target.strip() for target in targets):
            yield (
                ("target_modules",),
                f"target_modules={targets} names no layer or has an empty name",
                f"Write {ALL_LINEAR}, or names such as [q_proj,v_proj]",
            )


@dataclass(kw_only=True, slots=True)
class Fsdp:
    """How parameters are spread over the learner's ranks (FSDP2)."""

    cpu_offload: bool


@dataclass(kw_only=True, slots=True)
class Policy(Checked):
    """The model that is trained and how its updates are computed."""

    model: str
    architecture: dict[str, Any]
    tokenizer: str | None
    chat_template: str | None
    max_total_sequence_length: int = setting(ge=2)
    train_global_batch_size: int | None = setting(ge=1)
    train_micro_batch_tokens: int = setting(ge=1)
    sequence_packing: bool
    logprob_chunk_tokens: int = setting(ge=1)
    precision: Precision
    activation_checkpointing: bool
    freeze_moe_router: bool
    moe_router_fp32: bool
    max_grad_norm: float | None = setting(gt=0)
    optimizer: Optimizer
    scheduler: Schedule
    fsdp: Fsdp
    lora: Lora

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """An empty text names nothing: a variable of the environment may be set and empty."""
        if not self.model.strip():
            yield ("model",), "model is empty", "Give FOLDER_OR_NAME"
        for name, text in (("tokenizer", self.tokenizer), ("chat_template", self.chat_template)):
            if text is not None and not text.strip():
                yield (name,), f"{name} is empty", f"Write {name}=null for the model's own"


class Layout(StrEnum):
    """How the tensors of a checkpoint lie on disk."""

    WHOLE = "whole"
    SHARDED = "sharded"


@dataclass(kw_only=True, slots=True)
class Checkpointing:
    """When the run is saved and what is kept."""

    enabled: bool
    layout: Layout
    save_period: int = setting(ge=1)
    keep_top_k: int | None = setting(ge=0)
    metric: str | None
    higher_is_better: bool
    checkpoint_must_save_by: Duration | None


class WandbMode(StrEnum):
    """Where Weights & Biases puts what it is given."""

    OFFLINE = "offline"
    """Into files that `wandb sync` uploads whenever one likes."""
    ONLINE = "online"
    """To its server at once; needs an account."""


@dataclass(kw_only=True, slots=True)
class Wandb:
    """Metrics to Weights & Biases."""

    enabled: bool
    project: str
    mode: WandbMode


@dataclass(kw_only=True, slots=True)
class Mlflow:
    """Metrics to MLflow."""

    enabled: bool
    tracking_uri: str | None
    experiment: str


@dataclass(kw_only=True, slots=True)
class Logging:
    """What is written beside metrics.jsonl."""

    tensorboard: bool
    trained: bool
    keep_trained_steps: int | None = setting(ge=1)
    validation_rows: bool
    wandb: Wandb
    mlflow: Mlflow


@dataclass(kw_only=True, slots=True)
class RunConfig(Checked):
    """A whole run. Each slot is the settings object of the chosen variant."""

    run_dir: str | None
    num_threads: int | None = setting(ge=1, le=1024)
    deterministic: bool
    grpo: GRPO
    env: Env
    policy: Policy
    generation: Generation
    loss: Loss
    advantage: Advantage
    correction: Correction
    batching: Batching
    data: Data
    checkpointing: Checkpointing
    logging: Logging
    cluster: Cluster

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """A run needs a folder that has a name, and an early end that can come."""
        if self.run_dir is not None and not self.run_dir.strip():
            yield ("run_dir",), "run_dir is empty", "Give a path, or run_dir=null"
        grpo = self.grpo
        metric, threshold = grpo.stop_at_validation_metric, grpo.stop_at_validation_threshold
        most = 1.0 if metric == "validation/pass_k" else self.env.max_reward
        if metric is None or threshold is None or most is None or threshold <= most:
            return
        remedy = f"Give at most {most:g}"
        if 10 <= threshold <= 100:
            remedy = f"Write {threshold / 100:.12g} for {threshold:g} %"
        yield (
            ("grpo.stop_at_validation_metric", "grpo.stop_at_validation_threshold"),
            f"grpo.stop_at_validation_threshold={threshold:g} is never reached: {metric} is at "
            f"most {most:g} here",
            remedy,
        )
