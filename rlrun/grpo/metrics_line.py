# SPDX-License-Identifier: Apache-2.0
"""A step's line of metrics: what its verbs measured, and what every part of the run counts."""

from __future__ import annotations

from rlrun.batch import Batch
from rlrun.grpo.parts import Parts
from rlrun.grpo.step import StepInProgress
from rlrun.grpo.step_metrics import overlap_metrics, speed_metrics
from rlrun.process.compute import compute


async def complete_metrics(parts: Parts, current: StepInProgress, batch: Batch) -> dict[str, float]:
    """All metrics of the step; what was counted since the last one is counted anew from here.

    Args:
        parts: Of the run.
        current: What the verbs measured.
        batch: What the step trained on.
    """
    metrics = current.metrics | _speed(parts, current, batch)
    peak = await compute(parts.learner.peak_memory_bytes)
    metrics["perf/peak_memory_gib"] = peak / 2**30
    scheduler = parts.rollouts.decisions.scheduler
    metrics |= {f"tokens/{name}": count for name, count in scheduler.ledger().items()}
    return metrics | scheduler.counters() | parts.environment.metrics()


def _speed(parts: Parts, current: StepInProgress, batch: Batch) -> dict[str, float]:
    """What the step says about speed."""
    collector = parts.rollouts.collector
    seconds = {"validation": 0.0, **current.seconds}
    seconds["generating"] = collector.busy_seconds - current.busy
    generated = collector.take_tokens()
    waited = parts.rollouts.take_waited()
    metrics = speed_metrics(batch, generated, seconds, waited)
    if parts.config.grpo.concurrent:
        rate = metrics["perf/generated_tokens_per_s"]
        metrics |= overlap_metrics(batch, seconds, rate, parts.generator_share)
    return metrics
