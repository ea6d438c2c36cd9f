# SPDX-License-Identifier: Apache-2.0
"""Small records for tests."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from rlrun.batch import Sample
from rlrun.config import load
from rlrun.config.schema import RunConfig
from rlrun.types import Prompt, Row, StopReason, Trajectory, TrajectoryGroup, VersionSpan

ROOT = Path(__file__).parent.parent


def config(*overrides: str) -> RunConfig:
    """The quickstart with changes, to be changed further at will."""
    return deepcopy(_quickstart(*overrides))


@cache
def _quickstart(*overrides: str) -> RunConfig:
    return load(["+recipe=quickstart", *overrides]).config


def prompt(position: int = 0, token_ids: Sequence[int] = (5, 6, 7), **fields: Any) -> Prompt:
    """A prompt of its own row."""
    row = Row(
        row_id=f"rows:{position}",
        messages=({"role": "user", "content": "What is 1 + 1?"},),
        answer=fields.pop("answer", "2"),
        payload=fields,
        where=f"rows.jsonl:{position + 1}",
    )
    return Prompt(position=position, epoch=0, row=row, token_ids=tuple(token_ids))


def trajectory(
    sampled: Sequence[int] = (8, 9),
    *,
    before: Sequence[int] = (5, 6, 7),
    logprobs: Sequence[float] | None = None,
    reward: float | None = 1.0,
    sample_index: int = 0,
    stop_reason: StopReason = StopReason.STOP,
    version: int = 0,
    **fields: Any,
) -> Trajectory:
    """A single-turn trajectory."""
    n, start = len(sampled), len(before)
    values = list(logprobs) if logprobs is not None else [-0.5] * n
    return Trajectory(
        sample_index=sample_index,
        token_ids=(*before, *sampled),
        loss_mask=(False,) * start + (True,) * n,
        generation_logprobs=(0.0,) * start + tuple(values),
        weight_versions=(VersionSpan(version, start, start + n),) if n else (),
        input_length=start,
        response="text",
        reward=reward,
        rewards={} if reward is None else {"correct": reward},
        extracted=None,
        stop_reason=stop_reason,
        **fields,
    )


def group(
    rewards: Sequence[float | None], position: int = 0, sampled: Sequence[int] = (8, 9)
) -> TrajectoryGroup:
    """A group with these rewards."""
    return TrajectoryGroup(
        prompt(position),
        tuple(trajectory(sampled, reward=r, sample_index=i) for i, r in enumerate(rewards)),
    )


def sample(
    of: Trajectory, *, position: int = 0, advantage: float = 1.0, seed: int = 0, **fields: Any
) -> Sample:
    """A sample whose learner's log-probs are near the generator's."""
    mask = np.asarray(of.loss_mask)
    generation = np.asarray(of.generation_logprobs, np.float32)[mask]
    noise = np.random.default_rng(seed).normal(0, 0.1, len(generation)).astype(np.float32)
    values: dict[str, Any] = {
        "prompt": prompt(position),
        "trajectory": of,
        "reward": of.reward,
        "masked": None,
        "generation_logprobs": generation,
        "prev_logprobs": generation + noise,
        "weights": np.ones_like(generation),
        "advantage": advantage,
    }
    return Sample(**(values | fields))
