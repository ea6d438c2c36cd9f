# SPDX-License-Identifier: Apache-2.0
"""From a configuration to the parts of a trainer. The only file that sees all of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from rlrun.batch import lacks_signal
from rlrun.checkpoint.store import CheckpointStore, LoadedCheckpoint
from rlrun.collector import Collector
from rlrun.config import parse_duration
from rlrun.config.schema import RunConfig
from rlrun.console.console import Console
from rlrun.derived import is_ordered, scheduler_settings
from rlrun.evaluation.validation import Evaluator
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.parts import Parts
from rlrun.grpo.rollouts import Rollouts
from rlrun.grpo.saving import Saver, read_state
from rlrun.inputs import Inputs
from rlrun.interfaces import Environment, Generator, RunningCluster
from rlrun.metrics.logs import MetricsLogger
from rlrun.metrics.timeline import Timeline, TimelineFile
from rlrun.penalties import Penalties
from rlrun.prepare import MismatchGuard, Preparation
from rlrun.process.signals import StopSignal
from rlrun.process.time_limit import TimeLimit
from rlrun.prompts import PromptStream, ValidationPrompts
from rlrun.refit.probe import Probe
from rlrun.replay_buffer import ReplayBuffer
from rlrun.rollout import RolloutRunner
from rlrun.rollout.deadlines import Deadline
from rlrun.rollout_choice import make_rollout
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.event_log import EventLog, check_history, truncate_after
from rlrun.run_dir.recorder import Recorder
from rlrun.scheduler.machine import Scheduler
from rlrun.scheduler.replay import lost_tokens
from rlrun.serve.choose import choose_tool_parser

if TYPE_CHECKING:
    from rlrun.serve.server import PolicyServer


@dataclass(frozen=True, slots=True)
class Live:
    """What runs and has to be closed.

    Attributes:
        cluster: Where the roles are; has the learner.
        generator: Ready for its first refit.
        server: The HTTP server in front of the generator; None without one.
        environment: Open.
    """

    cluster: RunningCluster
    generator: Generator
    server: PolicyServer | None
    environment: Environment


@dataclass(frozen=True, slots=True)
class Progress:
    """What a run has come to: what a checkpoint restores, weights apart, and what is logged.

    Attributes:
        decisions: The scheduler with its event log.
        metrics: Writes metrics.jsonl and tells the sinks.
        buffer: Finished groups that are not trained yet.
        guard: Steps in a row in which generator and learner disagreed.
        timeline: Who was busy when, in the step in progress.
        timeline_file: Where the timeline of every step is written.
    """

    decisions: Decisions
    metrics: MetricsLogger
    buffer: ReplayBuffer
    guard: MismatchGuard
    timeline: Timeline
    timeline_file: TimelineFile


def check_events(checkpoint: LoadedCheckpoint, run_dir: RunDir) -> None:
    """Refuses to go on with the events of another run.

    Raises:
        StorageError: They are not those that the checkpoint was written with.
    """
    state = read_state(checkpoint.path)["scheduler"]
    tokens = state["ledger"]["counts"]["trained"]
    check_history(run_dir.events, state["at"]["seq"], state["at"]["trained"], tokens)


def decisions_at(
    checkpoint: LoadedCheckpoint | None, config: RunConfig, stream: PromptStream, run_dir: RunDir
) -> Decisions:
    """The scheduler at the checkpoint, with the events after it moved away; None: at the start."""
    settings, events = scheduler_settings(config, stream), run_dir.events
    if checkpoint is None:
        if events.exists():
            truncate_after(events, -1, run_dir.superseded)
        decisions = Decisions(Scheduler(settings, config.batching), EventLog(events))
        decisions.apply(decisions.scheduler.started_event())
        return decisions
    state = read_state(checkpoint.path)
    stream.check_state(state["stream"])
    scheduler = Scheduler.restore(settings, config.batching, state["scheduler"])
    cut = truncate_after(events, scheduler.seq, run_dir.superseded)
    decisions = Decisions(scheduler, EventLog(events))
    lost = lost_tokens(state["scheduler"], cut.events)
    decisions.apply(scheduler.restored_event(lost))
    return decisions


@dataclass(frozen=True, slots=True)
class Wiring:
    """All that the parts of a trainer are made of.

    Attributes:
        config: The run's settings.
        inputs: Tokenizer and prompts.
        run_dir: Where it writes.
        live: What it asks.
        progress: What it keeps.
    """

    config: RunConfig
    inputs: Inputs
    run_dir: RunDir
    live: Live
    progress: Progress

    def parts(self, console: Console, stop: StopSignal) -> Parts:
        """The parts, wired; ``stop`` tells of signals, ``console`` is told what happens."""
        config, live, progress = self.config, self.live, self.progress
        limit = config.checkpointing.checkpoint_must_save_by
        return Parts(
            config=config,
            run_dir=self.run_dir,
            rollouts=Rollouts(
                progress.decisions, self._collector(), config.grpo.no_progress_timeout_s
            ),
            prepare=self._preparation(),
            learner=live.cluster.learner,
            generator=live.generator,
            environment=live.environment,
            server=live.server,
            probe=self._probe(),
            evaluator=self._evaluator(),
            saver=self._saver(),
            records=self._recorder(),
            metrics=progress.metrics,
            timeline_file=progress.timeline_file,
            console=console,
            stop=stop,
            time_limit=TimeLimit(parse_duration(limit) if limit is not None else None),
            generator_share=live.cluster.generator_share,
        )

    def _rollout(self, *, training: bool) -> RolloutRunner:
        return make_rollout(
            self.config,
            self.inputs.renderer,
            self.live.generator,
            self.live.environment,
            training=training,
            timeline=self.progress.timeline,
        )

    def _collector(self) -> Collector:
        grpo = self.config.grpo
        rollout = self._rollout(training=True)
        return Collector(
            rollout,
            self.inputs.stream,
            self.progress.buffer,
            num_samples=grpo.num_generations_per_prompt,
            scored_needed=self.config.env.scored_needed(grpo.num_generations_per_prompt),
            lacks_signal=partial(lacks_signal, grpo=grpo) if grpo.use_dynamic_sampling else None,
            deadline=Deadline(
                grpo.group_timeout_s,
                # A lockstep call is a whole step, which one slow answer must not cost.
                None if rollout.lockstep else grpo.rollout_timeout_s,
            ),
        )

    def _preparation(self) -> Preparation:
        config = self.config
        return Preparation(
            learner=self.live.cluster.learner,
            grpo=config.grpo,
            advantage=config.advantage,
            correction=config.correction,
            max_new_tokens=config.generation.max_new_tokens,
            asynchronous=not is_ordered(config),
            guard=self.progress.guard,
            penalties=self._penalties(),
        )

    def _penalties(self) -> Penalties:
        """What reads responses as the policy's server does."""
        renderer, generation = self.inputs.renderer, self.config.generation

        def decode(token_ids: Sequence[int]) -> str:
            # Tags of reasoning and of calls may be special tokens; the end of a turn is no text.
            said = [token for token in token_ids if token not in renderer.eos_ids]
            return renderer.decode(said, skip_special=False)

        parser = None
        if generation.expose_http_server:
            parser = choose_tool_parser(generation.http, renderer.tokenizer)
        return Penalties(self.config.grpo, decode, parser)

    def _probe(self) -> Probe:
        policy = self.config.policy
        return Probe(
            self.live.generator,
            self.live.cluster.learner.score,
            token_ids=self.inputs.stream.prompt_at(0).token_ids,
            max_tokens=policy.max_total_sequence_length,
            precision=policy.precision,
        )

    def _evaluator(self) -> Evaluator | None:
        """None without validation data."""
        inputs, grpo = self.inputs, self.config.grpo
        if inputs.validation is None:
            return None
        rows, prompt_ids = inputs.validation.rows, inputs.renderer.prompt_ids
        return Evaluator(
            self._rollout(training=False),
            ValidationPrompts(rows, prompt_ids, grpo.max_val_samples),
            grpo.val_batch_size,
            grpo.val_num_generations_per_prompt,
        )

    def _saver(self) -> Saver:
        config, progress = self.config, self.progress
        return Saver(
            store=CheckpointStore(self.run_dir.checkpoints, config.checkpointing),
            learner=self.live.cluster.learner,
            tokenizer=self.inputs.renderer.tokenizer,
            scheduler=progress.decisions.scheduler,
            stream=self.inputs.stream,
            buffer=progress.buffer,
            guard=progress.guard,
            environment=self.live.environment,
            event_log=progress.decisions.event_log,
            metrics=progress.metrics,
            layout=config.checkpointing.layout,
        )

    def _recorder(self) -> Recorder:
        renderer = self.inputs.renderer
        return Recorder(
            self.run_dir,
            self.config.logging,
            lambda one: renderer.decode(one.token_ids[: one.input_length], skip_special=False),
        )
