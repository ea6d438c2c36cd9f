# SPDX-License-Identifier: Apache-2.0
"""The verbs of a step. In which order they run is the schedule's: grpo/sync.py."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlrun.batch import Batch
from rlrun.compute import compute, finish
from rlrun.config.schema import RunConfig
from rlrun.console import Console
from rlrun.errors import (
    EnvironmentDown,
    GenerationError,
    Interrupted,
    RlrunError,
    TrainingError,
)
from rlrun.evaluate import Evaluator
from rlrun.grpo.rollouts import Rollouts
from rlrun.grpo.saving import Saver
from rlrun.grpo.step_metrics import age_metrics, batch_metrics, overlap_metrics, speed_metrics
from rlrun.grpo.token_outcomes import outcomes, token_categories
from rlrun.heap import long_lived_heap
from rlrun.interfaces import Environment, Generator
from rlrun.learner.handle import LearnerHandle
from rlrun.logs import MetricsLogger
from rlrun.prepare import Preparation
from rlrun.recorder import Recorder
from rlrun.refit.probe import Probe
from rlrun.run_dir import RunDir
from rlrun.scheduler.decisions import Fail, Finish, Train
from rlrun.scheduler.events import Paused, Resumed, StepTrained, Stop, VersionPublished
from rlrun.signals import StopSignal
from rlrun.status import RunState
from rlrun.time_limit import TimeLimit
from rlrun.timeline import Lane, TimelineFile
from rlrun.types import FailureKind

if TYPE_CHECKING:
    from rlrun.serve.server import PolicyServer

log = logging.getLogger(__name__)


INTERRUPTED = "interrupted"
"""Why a run ended that a signal asked to end."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a trainer uses and does not own.

    Attributes:
        generator_share: Of the machine, that generates where learner and generator work at once.
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


@dataclass(slots=True)
class StepInProgress:
    """What is known of the running step so far.

    Attributes:
        metrics: Filled by the verbs.
        seconds: Wall time of the verbs.
        started: When the step began, by ``time.perf_counter``.
        busy: What the generator had been busy until then, in seconds.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    started: float = field(default_factory=time.perf_counter)
    busy: float = 0.0


class Trainer:
    """Runs GRPO from wherever the scheduler stands to the end of the run.

    Args:
        parts: See Parts.
        step: Completed steps; more than 0 after a resume.
    """

    def __init__(self, parts: Parts, step: int) -> None:
        self.parts, self.step = parts, step
        self.decisions, self.collector = parts.rollouts.decisions, parts.rollouts.collector
        self.timeline = parts.rollouts.timeline
        self.current = StepInProgress()
        self.batch: Batch | None = None
        self.save_seconds: float | None = None
        self.saved_step = self.validated_step = step
        self.validates = self.paused = False
        self.consistent = True

    async def run(self) -> str:
        """Trains to the end.

        Returns:
            Why the run ended: "max_steps", "data_end", "time_limit", or which metric was reached.

        Raises:
            Interrupted: A signal asked for the end; the run is saved.
            RlrunError: See errors.py; the run can be resumed from its newest checkpoint.
        """
        with self.timeline.busy(Lane.TRAINER, "refit"):
            await self.parts.generator.refit(self.step)
        self._release_server()
        await self.parts.probe.check(self.step)
        self._stop_if_asked()
        if self.step == 0 and self.parts.config.grpo.val_at_start and not self._ends:
            metrics = await self.validate()
            self.parts.metrics.log(0, metrics)
            self.parts.console.step(0, metrics)
        try:
            async with self.parts.rollouts:
                with long_lived_heap():
                    await self.parts.config.grpo.train(self)
        except TrainingError:
            # Weights that cannot be trusted are nothing to go on from.
            self.consistent = False
            raise
        finally:
            # Between steps everything is consistent, whatever ended the run.
            try:
                if self.consistent:
                    await self._end()
                await compute(self.parts.saver.finish)
            finally:
                # Whatever a cancelled verb left to the learner.
                await finish()
        ended = self.decisions.ended
        assert ended is not None, "a schedule returns only at the end"
        if ended.reason == INTERRUPTED and self.parts.stop.signal_number is not None:
            raise Interrupted(self.parts.stop.signal_number)
        return str(ended.reason)

    async def _end(self) -> None:
        """Validates and saves what the last step left open.

        The scheduler may end a run after its last step was logged (the rest of the data had no
        signal, say). What a validation finds then has no line in metrics.jsonl any more; it is
        shown, kept in validation/ and known to the checkpoint.
        """
        metrics: dict[str, float] = {}
        if self._completes and self.step > self.validated_step:
            metrics = await self.validate()
            self.parts.console.step(self.step, metrics)
        if self.parts.config.checkpointing.enabled and self.step > self.saved_step:
            self._save(metrics)

    # --- verbs ------------------------------------------------------------------------------------

    async def next_batch(self) -> Train | None:
        """Waits until the scheduler begins a step; None once it has ended the run.

        Raises:
            GenerationError: Too many failures, nothing with a signal, or no progress.
        """
        self.current, self.consistent = StepInProgress(busy=self.collector.busy_seconds), True
        self._stop_if_asked()
        waited_since = time.monotonic()
        self.parts.rollouts.carry_out()
        while (train := self.decisions.take_train()) is None:
            if isinstance(self.decisions.ended, Fail):
                raise _failure(self.decisions.ended)
            if self._ends:
                return None
            await self.parts.rollouts.news()
        self._took("generate")
        self.timeline.step_begins(train.positions, waited_since)
        return train

    async def update(self, train: Train) -> None:
        """Makes the batch, records it, and steps the optimizer if there is anything to learn."""
        parts, started = self.parts, time.perf_counter()
        self.consistent = False
        await parts.generator.release_memory()
        if parts.server is not None:
            await parts.server.hold()
        groups = self.collector.buffer.take(train.positions)
        with self.timeline.busy(Lane.TRAINER, "logprobs"):
            prepared = await compute(parts.prepare, train.step, groups, train.mask_before)
        self.current.seconds["logprobs"] = time.perf_counter() - started
        batch = self.batch = prepared.batch
        if prepared.warning is not None:
            parts.console.notice(f"step {train.step}: {prepared.warning}")
        # Before the update: if it fails, the batch that did it is there to be looked at.
        parts.records.trained(batch, self._targets(train))
        dropped = self.collector.take_dropped()
        metrics = batch_metrics(batch, prepared.entropies, dropped) | age_metrics(batch)
        metrics |= prepared.correction
        if self._learns(batch):
            minibatches = batch.minibatches(parts.config.policy.train_global_batch_size)
            began = time.perf_counter()
            with self.timeline.busy(Lane.TRAINER, "update"):
                metrics |= await compute(parts.learner.update, minibatches, train.step)
            self.current.seconds["update"] = time.perf_counter() - began
        metrics["train/skipped_update"] = float(not self._learns(batch))
        parts.rollouts.apply(
            StepTrained(train.step, outcomes(train.positions, batch), token_categories(batch))
        )
        self.current.metrics |= metrics
        self.current.seconds["train"] = time.perf_counter() - started

    async def quiesce(self) -> None:
        """Waits until nothing is being sampled, and lets nothing new begin before the refit."""
        self._pause()
        while self.decisions.scheduler.in_flight:
            await self.parts.rollouts.news()

    async def refit(self) -> None:
        """Gives the generator the new weights and frees the slots of the step."""
        started = time.perf_counter()
        version = self.step + 1
        with self.timeline.busy(Lane.TRAINER, "refit"):
            await self.parts.generator.refit(version)
        self._release_server()
        self.current.metrics["refit/seconds"] = time.perf_counter() - started
        difference = await self.parts.probe.check(version)
        if difference is not None:
            self.current.metrics["refit/probe_max_abs_diff"] = difference
        self.validates = self._is_validated(version)
        if self.validates:
            # Nothing begins during a validation: it has the generator to itself.
            self._pause()
        self.parts.rollouts.apply(VersionPublished(version))
        if not self.validates:
            self._resume()

    async def finish_step(self) -> None:
        """Validates, logs and saves as configured; asks for the end where it is due."""
        parts, batch = self.parts, self.batch
        assert batch is not None, "a step has a batch"
        self.step += 1
        self._stop_if_asked()
        if self.validates:
            started = time.perf_counter()
            self.current.metrics |= await self.validate()
            self.current.seconds["validation"] = time.perf_counter() - started
            self._stop_early(self.current.metrics)
            self._resume()
        self._took("step")
        parts.time_limit.step_took(self.current.seconds["step"])
        if parts.time_limit.reached():
            parts.rollouts.apply(Stop("time_limit"))
        if self._ends:
            await parts.rollouts.settle()
        metrics = self.current.metrics | self._speed(batch)
        peak = await compute(parts.learner.peak_memory_bytes)
        metrics["perf/peak_memory_gib"] = peak / 2**30
        if self.save_seconds is not None:
            # Of the step before: its own line was written before it was saved.
            metrics["perf/checkpoint_s"], self.save_seconds = self.save_seconds, None
        scheduler = self.decisions.scheduler
        metrics |= {f"tokens/{name}": count for name, count in scheduler.ledger().items()}
        metrics |= scheduler.counters() | parts.environment.metrics()
        parts.metrics.log(self.step, metrics)
        parts.timeline_file.write(self.timeline.take(self.step))
        parts.console.step(self.step, metrics)
        parts.run_dir.write_status(RunState.RUNNING, step=self.step)
        self._stop_if_asked()
        if self._saves():
            self._save(metrics)
        self.consistent = True

    async def validate(self) -> dict[str, float]:
        """Evaluates the present weights and records what was generated.

        A validation that cannot be generated is said and leaves no metric; training goes on, and
        fails by its own rules if generation is gone for good.
        """
        evaluator = self.parts.evaluator
        assert evaluator is not None, "a configuration that validates has validation data"
        self.validated_step = self.step
        try:
            with self.timeline.busy(Lane.TRAINER, "validation"):
                evaluation = await evaluator.run()
        except GenerationError as error:
            log.warning("step %d: there is no validation: %s", self.step, error)
            return {}
        self.parts.records.validation(self.step, evaluation.groups)
        return evaluation.metrics

    def _release_server(self) -> None:
        if self.parts.server is not None:
            self.parts.server.release()

    def _save(self, metrics: dict[str, float]) -> None:
        with self.timeline.busy(Lane.TRAINER, "save"):
            self.save_seconds = self.parts.saver.save(self.step, metrics)
        whole = self.parts.saver.store.background_seconds
        self.parts.time_limit.save_took(max(self.save_seconds, whole))
        self.saved_step = self.step

    # --- what is due ------------------------------------------------------------------------------

    @property
    def _ends(self) -> bool:
        return self.decisions.ended is not None

    def _learns(self, batch: Batch) -> bool:
        """A batch without signal must not be stepped: momentum would move the weights."""
        loss = self.parts.config.loss
        everyone_moves = loss.reference_policy_kl_penalty > 0 or not loss.needs_advantage
        return bool(batch.trained) and (batch.has_signal or everyone_moves)

    @property
    def _completes(self) -> bool:
        """Whether the run came to its end, rather than being interrupted or short of time."""
        ended = self.decisions.ended
        complete = isinstance(ended, Finish) and ended.reason in ("max_steps", "data_end")
        return complete and self.parts.config.grpo.val_at_end

    def _is_validated(self, step: int) -> bool:
        grpo = self.parts.config.grpo
        if self._completes:
            return True
        return grpo.val_period > 0 and step % grpo.val_period == 0 and step >= grpo.val_start_at

    def _stop_if_asked(self) -> None:
        if self.parts.stop.signal_number is not None and not self._ends:
            self.parts.rollouts.apply(Stop(INTERRUPTED))

    def _stop_early(self, metrics: dict[str, float]) -> None:
        grpo = self.parts.config.grpo
        name, threshold = grpo.stop_at_validation_metric, grpo.stop_at_validation_threshold
        if name is None or threshold is None or self._ends:
            return
        value = metrics.get(name)
        if value is not None and value >= threshold:
            self.parts.rollouts.apply(Stop(f"{name}={value:.4g} reached {threshold:.4g}"))

    def _saves(self) -> bool:
        settings = self.parts.config.checkpointing
        return settings.enabled and (self._ends or self.step % settings.save_period == 0)

    # --- small acts -------------------------------------------------------------------------------

    def _speed(self, batch: Batch) -> dict[str, float]:
        """What the step says about speed."""
        seconds = {"validation": 0.0, **self.current.seconds}
        seconds["generating"] = self.collector.busy_seconds - self.current.busy
        generated = self.collector.take_tokens()
        waited = self.parts.rollouts.take_waited()
        metrics = speed_metrics(batch, generated, seconds, waited)
        if self.parts.config.grpo.concurrent:
            rate = metrics["perf/generated_tokens_per_s"]
            metrics |= overlap_metrics(batch, seconds, rate, self.parts.generator_share)
        return metrics

    def _pause(self) -> None:
        if not self.paused and not self._ends:
            self.parts.rollouts.apply(Paused())
            self.paused = True

    def _resume(self) -> None:
        if self.paused and not self._ends:
            self.parts.rollouts.apply(Resumed())
        self.paused = False

    def _targets(self, train: Train) -> dict[int, int] | None:
        """A step trains exactly the groups that were admitted for it, if they were for any."""
        if not self.parts.config.batching.assigns_targets:
            return None
        return dict.fromkeys(train.positions, train.step)

    def _took(self, verb: str) -> None:
        self.current.seconds[verb] = time.perf_counter() - self.current.started


def _failure(fail: Fail) -> RlrunError:
    """The error that a run ends with when its scheduler gives up."""
    cause = f" The original error: {fail.error}" * bool(fail.error)
    kind = EnvironmentDown if fail.error.startswith(FailureKind.ENV_DOWN) else GenerationError
    remedy = ""
    if fail.error.startswith((FailureKind.REWARD_ERROR, FailureKind.ENV_ERROR)):
        remedy = "Correct the environment or reward function; rlrun check tries it with two answers"
    return kind("rollout", fail.reason + "." + cause, remedy)
