# SPDX-License-Identifier: Apache-2.0
"""What a trainer works with; wiring.py makes it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlrun.config.schema import RunConfig
from rlrun.console.console import Console
from rlrun.evaluation.validation import Evaluator
from rlrun.grpo.rollouts import Rollouts
from rlrun.grpo.saving import Saver
from rlrun.interfaces import Environment, Generator
from rlrun.learner.handle import LearnerHandle
from rlrun.metrics.logs import MetricsLogger
from rlrun.metrics.timeline import TimelineFile
from rlrun.prepare import Preparation
from rlrun.process.signals import StopSignal
from rlrun.process.time_limit import TimeLimit
from rlrun.refit.probe import Probe
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.recorder import Recorder

if TYPE_CHECKING:
    from rlrun.serve.server import PolicyServer


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a trainer uses and does not own.

    Attributes:
        generator_share: Share of the machine that generates where learner and generator run at the
            same time.
    """

    config: RunConfig
    run_dir: RunDir
    rollouts: Rollouts
    prepare: Preparation
    learner: LearnerHandle
    generator: Generator
    environment: Environment
    server: PolicyServer | None
    probe: Probe
    evaluator: Evaluator | None
    saver: Saver
    records: Recorder
    metrics: MetricsLogger
    timeline_file: TimelineFile
    console: Console
    stop: StopSignal
    time_limit: TimeLimit
    generator_share: float
