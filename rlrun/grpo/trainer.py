# SPDX-License-Identifier: Apache-2.0
"""The verbs of a step. In which order they run is the schedule's: grpo/sync.py."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from rlrun.batch import Batch
from rlrun.collector import Collector
from rlrun.config.schema import RunConfig
from rlrun.console import Console
from rlrun.errors import EnvironmentDown, GenerationError, Interrupted
from rlrun.evaluate import Evaluator
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.saving import Saver
from rlrun.grpo.step_metrics import age_metrics, batch_metrics, speed_metrics
from rlrun.grpo.token_outcomes import outcomes, token_categories
from rlrun.interfaces import Generator
from rlrun.learner.learner import Learner
from rlrun.logs import MetricsLogger
from rlrun.prepare import Preparation
from rlrun.recorder import Recorder
from rlrun.refit.probe import Probe
from rlrun.run_dir import RunDir
from rlrun.scheduler.decisions import Fail, Finish, Train
from rlrun.scheduler.events import StepTrained, Stop, VersionPublished
from rlrun.signals import StopSignal
from rlrun.status import RunState
from rlrun.time_limit import TimeLimit
from rlrun.types import FailureKind

log = logging.getLogger(__name__)

INTERRUPTED = "interrupted"
"""Why a run ended that a signal asked to end."""


@dataclass(frozen=True, slots=True)
class Parts:
    """Everything that a trainer uses and does not own."""

    config: RunConfig
    run_dir: RunDir
    decisions: Decisions
    collector: Collector
    prepare: Preparation
    learner: Learner
    generator: Generator
    probe: Probe
    evaluator: Evaluator | None
    saver: Saver
    records: Recorder
    metrics: MetricsLogger
    console: Console
    stop: StopSignal
    time_limit: TimeLimit


@dataclass(slots=True)
class StepInProgress:
    """What is known of the running step so far.

    Attributes:
        metrics: Filled by the verbs.
        seconds: Wall time of the verbs.
        generated: Tokens sampled for the step.
        started: When the step began, by ``time.perf_counter``.
    """

    metrics: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    generated: int = 0
    started: float = field(default_factory=time.perf_counter)


class Trainer:
    """Runs GRPO from wherever the scheduler stands to the end of the run.

    Args:
        parts: See Parts.
        step: Completed steps; more than 0 after a resume.
    """

    def __init__(self, parts: Parts, step: int) -> None:
        self.parts, self.step = parts, step
        self.current = StepInProgress()
        self.batch: Batch | None = None
        self.save_seconds: float | None = None
        self.saved_step = self.validated_step = step
        self.consistent = True

    async def run(self) -> str:
        """Trains to the end.

        Returns:
            Why the run ended: "max_steps", "data_end", "time_limit", or which metric was reached.

        Raises:
            Interrupted: A signal asked for the end; the run is saved.
            RlrunError: See errors.py; the run can be resumed from its newest checkpoint.
        """
        await self.parts.generator.refit(self.step)
        await self.parts.probe.check(self.step)
        self._stop_if_asked()
        if self.step == 0 and self.parts.config.grpo.val_at_start and not self._ends:
            metrics = await self.validate()
            self.parts.metrics.log(0, metrics)
            self.parts.console.step(0, metrics)
        try:
            await self.parts.config.grpo.train(self)
        finally:
            # Between steps everything is consistent, whatever ended the run.
            if self.consistent:
                await self._end()
        ended = self.parts.decisions.ended
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
        """Generates until the scheduler begins a step; None once it has ended the run.

        Raises:
            GenerationError: Too many failures, or nothing with a signal.
        """
        self.current, self.consistent = StepInProgress(), True
        decisions = self.parts.decisions
        self._stop_if_asked()
        while (train := decisions.take_train()) is None:
            if isinstance(decisions.ended, Fail):
                cause = f" The original error: {decisions.ended.error}" * bool(
                    decisions.ended.error
                )
                down = decisions.ended.error.startswith(FailureKind.ENV_DOWN)
                kind = EnvironmentDown if down else GenerationError
                raise kind("rollout", decisions.ended.reason + "." + cause)
            if decisions.ended is not None:
                return None
            admits = decisions.take_admits()
            assert admits, "a synchronous scheduler that neither trains nor ends admits prompts"
            for event in await self.parts.collector.run(admits):
                decisions.apply(event)
        self._took("generate")
        return train

    async def update(self, train: Train) -> None:
        """Makes the batch, records it, and steps the optimizer if there is anything to learn."""
        parts, started = self.parts, time.perf_counter()
        self.consistent = False
        await parts.generator.release_memory()
        groups = parts.collector.take(train.positions)
        prepared = parts.prepare(train.step, groups)
        self.current.seconds["logprobs"] = time.perf_counter() - started
        batch = self.batch = prepared.batch
        if prepared.warning is not None:
            parts.console.notice(f"step {train.step}: {prepared.warning}")
        # Before the update: if it fails, the batch that did it is there to be looked at.
        parts.records.trained(batch)
        dropped = parts.collector.take_dropped()
        self.current.generated = sum(group.num_sampled for group in (*groups, *dropped))
        metrics = batch_metrics(batch, prepared.entropies, dropped) | age_metrics(batch)
        metrics |= prepared.correction
        if self._learns(batch):
            size = parts.config.policy.train_global_batch_size
            began = time.perf_counter()
            metrics |= parts.learner.update(batch.minibatches(size), train.step)
            self.current.seconds["update"] = time.perf_counter() - began
        metrics["train/skipped_update"] = float(not self._learns(batch))
        parts.decisions.apply(
            StepTrained(train.step, outcomes(train.positions, batch), token_categories(batch))
        )
        self.current.metrics |= metrics
        self.current.seconds["train"] = time.perf_counter() - started

    async def refit(self) -> None:
        """Gives the generator the new weights and frees the slots of the step."""
        started = time.perf_counter()
        version = self.step + 1
        await self.parts.generator.refit(version)
        self.current.metrics["refit/seconds"] = time.perf_counter() - started
        difference = await self.parts.probe.check(version)
        if difference is not None:
            self.current.metrics["refit/probe_max_abs_diff"] = difference
        self.parts.decisions.apply(VersionPublished(version))

    async def finish_step(self) -> None:
        """Validates, logs and saves as configured; asks for the end where it is due."""
        parts, batch = self.parts, self.batch
        assert batch is not None, "a step has a batch"
        self.step += 1
        self._stop_if_asked()
        if self._validates():
            self.current.metrics |= await self.validate()
            self._stop_early(self.current.metrics)
        self._took("step")
        parts.time_limit.step_took(self.current.seconds["step"])
        if parts.time_limit.reached():
            parts.decisions.apply(Stop("time_limit"))
        metrics = self.current.metrics | speed_metrics(
            batch, self.current.generated, self.current.seconds
        )
        if self.save_seconds is not None:
            # Of the step before: its own line was written before it was saved.
            metrics["perf/checkpoint_s"], self.save_seconds = self.save_seconds, None
        scheduler = parts.decisions.scheduler
        metrics |= {f"tokens/{name}": count for name, count in scheduler.ledger().items()}
        metrics |= scheduler.counters()
        parts.metrics.log(self.step, metrics)
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
            evaluation = await evaluator.run()
        except GenerationError as error:
            log.warning("step %d: there is no validation: %s", self.step, error)
            return {}
        self.parts.records.validation(self.step, evaluation.groups)
        return evaluation.metrics

    def _save(self, metrics: dict[str, float]) -> None:
        self.save_seconds = self.parts.saver.save(self.step, metrics)
        self.parts.time_limit.save_took(self.save_seconds)
        self.saved_step = self.step

    # --- what is due ------------------------------------------------------------------------------

    @property
    def _ends(self) -> bool:
        return self.parts.decisions.ended is not None

    def _learns(self, batch: Batch) -> bool:
        """A batch without signal must not be stepped: momentum would move the weights."""
        with_kl = self.parts.config.loss.reference_policy_kl_penalty > 0
        return bool(batch.trained) and (batch.has_signal or with_kl)

    @property
    def _completes(self) -> bool:
        """Whether the run came to its end, rather than being interrupted or short of time."""
        ended = self.parts.decisions.ended
        complete = isinstance(ended, Finish) and ended.reason in ("max_steps", "data_end")
        return complete and self.parts.config.grpo.val_at_end

    def _validates(self) -> bool:
        grpo = self.parts.config.grpo
        if self._completes:
            return True
        return (
            grpo.val_period > 0
            and self.step % grpo.val_period == 0
            and self.step >= grpo.val_start_at
        )

    def _stop_if_asked(self) -> None:
        if self.parts.stop.signal_number is not None and not self._ends:
            self.parts.decisions.apply(Stop(INTERRUPTED))

    def _stop_early(self, metrics: dict[str, float]) -> None:
        grpo = self.parts.config.grpo
        name, threshold = grpo.stop_at_validation_metric, grpo.stop_at_validation_threshold
        if name is None or threshold is None or self._ends:
            return
        value = metrics.get(name)
        if value is not None and value >= threshold:
            self.parts.decisions.apply(Stop(f"{name}={value:.4g} reached {threshold:.4g}"))

    def _saves(self) -> bool:
        settings = self.parts.config.checkpointing
        return settings.enabled and (self._ends or self.step % settings.save_period == 0)

    def _took(self, verb: str) -> None:
        self.current.seconds[verb] = time.perf_counter() - self.current.started
