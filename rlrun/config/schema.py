# SPDX-License-Identifier: Apache-2.0
"""The shape of a run: every key that exists, its type and its range. Values live in conf/."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

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


class OnBadRow(StrEnum):
    """What a data row that cannot be used does."""

    ERROR = "error"
    SKIP = "skip"


class Decay(StrEnum):
    """How the learning rate goes on after the warm-up."""

    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(kw_only=True, slots=True)
class Optimizer:
    """AdamW."""

    lr: float = setting(ge=0)
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
        """A decay needs an end."""
        if self.decay is not Decay.CONSTANT and self.decay_steps is None:
            yield (
                ("decay", "decay_steps"),
                f"decay={self.decay.value} with decay_steps=null",
                "Set decay_steps to the step at which the decay ends",
            )


@dataclass(kw_only=True, slots=True)
class Policy:
    """The model that is trained and how its updates are computed."""

    model: str
    tokenizer: str | None
    chat_template: str | None
    max_total_sequence_length: int = setting(ge=2)
    train_global_batch_size: int | None = setting(ge=1)
    train_micro_batch_tokens: int = setting(ge=1)
    logprob_chunk_tokens: int = setting(ge=1)
    precision: Precision
    activation_checkpointing: bool
    max_grad_norm: float | None = setting(gt=0)
    optimizer: Optimizer
    scheduler: Schedule


@dataclass(kw_only=True, slots=True)
class DataSource(Checked):
    """One set of rows: where they come from and how their fields are read."""

    source: str | None
    split: str | None
    limit: int | None = setting(ge=1)
    size: int | None = setting(ge=1)
    seed: int = setting(ge=0)
    options: dict[str, Any]
    prompt_field: str | None
    answer_field: str | None
    answer_pattern: str | None
    system_prompt: str | None
    prompt_template: str | None
    shuffle: bool


@dataclass(kw_only=True, slots=True)
class Data:
    """Training and validation rows."""

    train: DataSource
    validation: DataSource
    on_bad_row: OnBadRow
    max_prompt_tokens: int | None = setting(ge=1)


@dataclass(kw_only=True, slots=True)
class Checkpointing:
    """When the run is saved and what is kept."""

    enabled: bool
    save_period: int = setting(ge=1)
    keep_top_k: int | None = setting(ge=0)
    metric: str | None
    higher_is_better: bool
    checkpoint_must_save_by: str | None


@dataclass(kw_only=True, slots=True)
class Logging:
    """What is written beside metrics.jsonl."""

    tensorboard: bool
    trained: bool
    validation_rows: bool


@dataclass(kw_only=True, slots=True)
class RunConfig:
    """A whole run. Each slot is the settings object of the chosen variant."""

    run_dir: str | None
    num_threads: int | None = setting(ge=1)
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
