# SPDX-License-Identifier: Apache-2.0
"""The verbs of a step. A schedule decides in which order they run: sync.py or async_.py."""

from __future__ import annotations

import logging
import time

from rlrun.batch import Batch
from rlrun.errors import GenerationError, Interrupted, TrainingError
from rlrun.grpo.decisions import error_of
from rlrun.grpo.due import Due
from rlrun.grpo.metrics_line import complete_metrics
from rlrun.grpo.parts import Parts
from rlrun.grpo.step import StepInProgress
from rlrun.grpo.step_metrics import age_metrics, batch_metrics
from rlrun.grpo.token_outcomes import outcomes, token_categories
from rlrun.metrics.timeline import Lane
from rlrun.process.compute import compute, finish_computing
from rlrun.process.heap import long_lived_heap
from rlrun.run_dir.status import RunState
from rlrun.scheduler.decisions import Fail, Train
from rlrun.scheduler.events import Paused, Resumed, StepTrained, Stop, VersionPublished

log = logging.getLogger(__name__)

INTERRUPTED = "interrupted"
"""Why a run ended that a signal asked to end."""


class Trainer:
    """Runs GRPO from wherever the scheduler stands to the end of the run.

    The verbs are called by a schedule (sync.py, async_.py), in the order of a step.

    Args:
        parts: See Parts.
        step: Completed steps; more than 0 after a resume.

    Attributes:
        step: Completed steps.
        current: What is measured of the step in progress.
        batch: The batch of the step in progress; None before the first.
        consistent: Whether weights, scheduler and records are those of one step, so that a
            checkpoint may be written: not so from the beginning of an update to the step's end.
        validates: Whether the step in progress ends with a validation.
        paused: Whether the scheduler was told to admit nothing.
        saved_step: The step of the last checkpoint that this process wrote or began from.
        validated_step: Likewise, of the last validation.
        save_seconds: What the last save took, until a line of metrics says so.
    """

    def __init__(self, parts: Parts, step: int) -> None:
        self.parts, self.step = parts, step
        self.decisions, self.collector = parts.rollouts.decisions, parts.rollouts.collector
        self.timeline = parts.rollouts.timeline
        self.due = Due(parts.config, self.decisions)
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
        if self.step == 0 and self.parts.config.grpo.val_at_start and not self.due.end:
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
                await finish_computing()
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
        if self.due.last_validation and self.step > self.validated_step:
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
                raise error_of(self.decisions.ended)
            if self.due.end:
                return None
            await self.parts.rollouts.news()
        self.current.took("generate")
        self.timeline.step_begins(train.positions, waited_since)
        return train

    async def update(self, train: Train) -> None:
        """Makes the batch, records it, and steps the optimizer if there is anything to learn."""
        self.consistent = False
        with self.current.timed("train"):
            batch = self.batch = await self._prepare(train)
            learns = self.due.update(batch)
            if learns:
                await self._learn(batch)
            self.current.metrics["train/skipped_update"] = float(not learns)
            self.parts.rollouts.apply(
                StepTrained(train.step, outcomes(train.positions, batch), token_categories(batch))
            )

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
        self.validates = self.due.validation(version)
        if self.validates:
            # Nothing begins during a validation: it has the generator to itself.
            self._pause()
        else:
            self._stop_in_time(version)
        self.parts.rollouts.apply(VersionPublished(version))
        if not self.validates:
            self._resume()

    async def finish_step(self) -> None:
        """Validates, logs and saves as configured; asks for the end where it is due."""
        parts = self.parts
        self.step += 1
        self._stop_if_asked()
        if self.validates:
            with self.current.timed("validation"):
                self.current.metrics |= await self.validate()
            reason = self.due.early_end(self.current.metrics)
            if reason is not None:
                parts.rollouts.apply(Stop(reason))
            self._stop_in_time(self.step)
            self._resume()
        self.current.took("step")
        if self.due.end:
            await parts.rollouts.settle()
        assert self.batch is not None, "a step has a batch"
        metrics = await complete_metrics(parts, self.current, self.batch)
        if self.save_seconds is not None:
            # Of the step before: its own line was written before it was saved.
            metrics["perf/checkpoint_s"], self.save_seconds = self.save_seconds, None
        parts.metrics.log(self.step, metrics)
        parts.timeline_file.write(self.timeline.take(self.step))
        parts.console.step(self.step, metrics)
        parts.run_dir.write_status(RunState.RUNNING, step=self.step)
        self._stop_if_asked()
        if self.due.save(self.step):
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
        started = time.perf_counter()
        try:
            with self.timeline.busy(Lane.TRAINER, "validation"):
                evaluation = await evaluator.run()
        except GenerationError as error:
            log.warning("step %d: there is no validation: %s", self.step, error)
            return {}
        finally:
            self.parts.time_limit.validation_took(time.perf_counter() - started)
        self.parts.records.validation(self.step, evaluation.groups)
        return evaluation.metrics

    # --- what the verbs are made of ---------------------------------------------------------------

    async def _prepare(self, train: Train) -> Batch:
        """The batch of a step, with what the learner says of it before the update."""
        parts = self.parts
        with self.current.timed("logprobs"):
            await parts.generator.release_memory()
            if parts.server is not None:
                await parts.server.hold()
            groups = self.collector.buffer.take(train.positions)
            with self.timeline.busy(Lane.TRAINER, "logprobs"):
                prepared = await compute(parts.prepare, train.step, groups, train.mask_before)
        batch = prepared.batch
        if prepared.warning is not None:
            parts.console.notice(f"step {train.step}: {prepared.warning}")
        # Before the update: if it fails, the batch that did it is there to be looked at.
        parts.records.trained(batch, self._targets(train))
        dropped, expired = self.collector.take_dropped(), self.collector.take_expired()
        self.current.metrics |= batch_metrics(batch, prepared.entropies, dropped, expired)
        self.current.metrics |= age_metrics(batch) | prepared.metrics
        return batch

    async def _learn(self, batch: Batch) -> None:
        minibatches = batch.minibatches(self.parts.config.policy.train_global_batch_size)
        with self.current.timed("update"), self.timeline.busy(Lane.TRAINER, "update"):
            self.current.metrics |= await compute(
                self.parts.learner.update, minibatches, batch.step
            )

    def _release_server(self) -> None:
        if self.parts.server is not None:
            self.parts.server.release()

    def _save(self, metrics: dict[str, float]) -> None:
        with self.timeline.busy(Lane.TRAINER, "save"):
            self.save_seconds = self.parts.saver.save(self.step, metrics)
        whole = self.parts.saver.store.background_seconds
        self.parts.time_limit.save_took(max(self.save_seconds, whole))
        self.saved_step = self.step

    def _stop_if_asked(self) -> None:
        if self.parts.stop.signal_number is not None and not self.due.end:
            self.parts.rollouts.apply(Stop(INTERRUPTED))

    def _stop_in_time(self, step: int) -> None:
        """Ends the run with this step if a signal asked for it or another one would take too long.

        Where the next batch is ready the scheduler begins it as soon as it may, and a step that has
        begun is completed: this must come before.
        """
        self._stop_if_asked()
        self.current.took("step")
        validation, limit = self.current.seconds.get("validation", 0.0), self.parts.time_limit
        limit.step_took(self.current.seconds["step"] - validation)
        if not self.due.end and limit.reached(validates=self.due.expects_validation(step + 1)):
            self.parts.rollouts.apply(Stop("time_limit"))

    def _pause(self) -> None:
        if not self.paused and not self.due.end:
            self.parts.rollouts.apply(Paused())
            self.paused = True

    def _resume(self) -> None:
        if self.paused and not self.due.end:
            self.parts.rollouts.apply(Resumed())
        self.paused = False

    def _targets(self, train: Train) -> dict[int, int] | None:
        """A step trains exactly the groups that were admitted for it, if they were for any."""
        if not self.parts.config.batching.assigns_targets:
            return None
        return dict.fromkeys(train.positions, train.step)
