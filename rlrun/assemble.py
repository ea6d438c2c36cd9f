# SPDX-License-Identifier: Apache-2.0
"""A run from its start or resume to its end: opens every part in order, trains, closes them."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.checkpoint.store import LoadedCheckpoint, load_checkpoint, saved_steps
from rlrun.config import Loaded, load
from rlrun.config.origin_record import origin_record
from rlrun.config.paths import expand
from rlrun.config.schema import RunConfig
from rlrun.config.unread import said, unread_keys
from rlrun.console.console import Console
from rlrun.derived import plan_in_words
from rlrun.errors import Interrupted, RlrunError
from rlrun.grpo.saving import made_so_far, read_state, restore_buffer, restore_randomness
from rlrun.grpo.trainer import Trainer
from rlrun.inputs import Inputs, read_inputs
from rlrun.interfaces import Generator, RunningCluster, variant_of
from rlrun.learner.bfloat16 import precision_notice
from rlrun.metrics.logs import MetricsLogger, read_metrics
from rlrun.metrics.timeline import Timeline, TimelineFile
from rlrun.prepare import MismatchGuard
from rlrun.process.compute import compute_blocking
from rlrun.process.machine import set_up_torch, versions
from rlrun.process.open_files import raise_limit
from rlrun.process.signals import StopSignal
from rlrun.replay_buffer import ReplayBuffer
from rlrun.report import write_report
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.resume_rules import check_length, check_overrides
from rlrun.run_dir.state import reason_in_words
from rlrun.run_dir.status import RunState
from rlrun.wiring import Live, Progress, Wiring, check_events, decisions_at

if TYPE_CHECKING:
    from rlrun.serve.server import PolicyServer

log = logging.getLogger(__name__)

LONGER = {"max_steps": " grpo.max_num_steps=N", "data_end": " grpo.max_num_epochs=N"}
"""What makes a run longer that has reached its end, by how it ended; others just go on."""


def train(loaded: Loaded) -> None:
    """Trains a new run.

    Raises:
        RlrunError: See errors.py; its exit code is the command's.
    """
    path = loaded.config.run_dir or f"runs/{loaded.recipe}/{time.strftime('%Y%m%d-%H%M%S')}"
    with Console() as console:
        # First, so that a mistake in the data leaves no run directory behind.
        inputs = read_inputs(loaded.config, console.notice)
        for where, what, remedy in unread_keys(loaded):
            console.warning(f"{said(where, what)}. {remedy}.")
        with RunDir.create(expand(path)) as run_dir:
            run_dir.write_config(loaded.yaml())
            run_dir.write_origins(origin_record(loaded.origins, {}))
            _run(loaded.config, inputs, run_dir, console)


def resume(path: Path, overrides: Sequence[str]) -> None:
    """Goes on with a run from its newest whole checkpoint, or from the start if it has none.

    Raises:
        ConfigError: An override changes what was already trained with, or ends the run before that.
        RlrunError: See errors.py.
    """
    check_overrides(overrides)
    with RunDir.resume(path) as run_dir, Console() as console:
        loaded = load([f"+recipe={run_dir.config}", *overrides])
        inputs = read_inputs(loaded.config, console.notice)
        done, begun = made_so_far(run_dir.checkpoints)
        check_length(loaded.config, inputs.stream, done, begun, overrides)
        run_dir.write_config(loaded.yaml())
        run_dir.write_origins(origin_record(loaded.origins, run_dir.read_origins()))
        _run(loaded.config, inputs, run_dir, console, resumed=True)


def _run(
    config: RunConfig,
    inputs: Inputs,
    run_dir: RunDir,
    console: Console,
    *,
    resumed: bool = False,
) -> None:
    run_dir.open_log()
    log.info("%s", versions())
    set_up_torch(config)
    raise_limit()
    try:
        with StopSignal() as stop:
            run = _Run(config, inputs, run_dir, console, stop, resumed=resumed)
            with _status(run_dir, run):
                asyncio.run(run.run())
    finally:
        _report(run_dir, console)


def _report(run_dir: RunDir, console: Console) -> None:
    """Writes report.html, however the run ended: a failed one most of all wants a look."""
    try:
        console.say([f"report: {write_report([run_dir.root])}"])
    # A view of the run: whatever is wrong with it, the run ends as it ended without.
    except Exception as error:
        log.warning("there is no report: %s", error, exc_info=error)


@contextmanager
def _status(run_dir: RunDir, run: _Run) -> Iterator[None]:
    """Keeps status.json true, however the run ends."""
    run_dir.write_status(RunState.RUNNING, step=run.step)
    try:
        yield
    except Interrupted as error:
        state = RunState.INTERRUPTED
        run_dir.write_status(state, step=run.step, reason=error.what, exit_code=error.exit_code)
        raise
    except RlrunError as error:
        log.info("the run failed", exc_info=error)
        state = RunState.FAILED
        run_dir.write_status(state, step=run.step, reason=str(error), exit_code=error.exit_code)
        raise
    except BaseException as error:
        log.info("the run failed", exc_info=error)
        reason = f"{type(error).__name__}: {error}"
        run_dir.write_status(RunState.FAILED, step=run.step, reason=reason, exit_code=1)
        raise
    state = RunState.TIME_LIMIT if run.ended == "time_limit" else RunState.DONE
    run_dir.write_status(state, step=run.step, reason=run.ended, exit_code=0)


class _Run:
    """One process's part of a run.

    Attributes:
        step: The last finished step.
        ended: Why training ended.
        resumed: Whether it goes on with what another process began.
    """

    def __init__(
        self,
        config: RunConfig,
        inputs: Inputs,
        run_dir: RunDir,
        console: Console,
        stop: StopSignal,
        *,
        resumed: bool,
    ) -> None:
        self.config, self.inputs, self.run_dir = config, inputs, run_dir
        self.console, self.stop, self.resumed = console, stop, resumed
        before = run_dir.read_status()
        self.step = 0 if before is None else before.step
        self.ended = ""

    async def run(self) -> None:
        """Wires, trains and closes."""
        inputs = self.inputs
        checkpoint = self._checkpoint() if self.resumed else None
        if checkpoint is not None:
            check_events(checkpoint, self.run_dir)
        environment = self.config.env.start()
        cluster: RunningCluster | None = None
        generator: Generator | None = None
        try:
            cluster = self.config.cluster.start(self.config, self.run_dir.root)
            notice = precision_notice(self.config.policy.precision, cluster.learner.device)
            if notice is not None:
                self.console.notice(notice)
            generator = await cluster.start_generator(inputs.renderer, self._say)
            async with self._serving(generator, cluster.ray_address) as server:
                if self.config.env.announcement:
                    self._say(self.config.env.announcement)
                await environment.open(
                    None
                    if server is None
                    else server.address(self.run_dir.root / "gym", cluster.ray_address)
                )
                await self._train(Live(cluster, generator, server, environment), checkpoint)
        finally:
            if generator is not None:
                await generator.close()
            await environment.close()
            if cluster is not None:
                cluster.close()

    def _say(self, text: str) -> None:
        self.console.say([text])

    @asynccontextmanager
    async def _serving(
        self, generator: Generator, ray_address: str | None
    ) -> AsyncIterator[PolicyServer | None]:
        """The HTTP server in front of the generator, if the run exposes one."""
        config, path = self.config, self.run_dir.http_server
        if not config.generation.expose_http_server:
            yield None
            return
        from rlrun.serve.start import new_api_key, start_server, write_address

        key = new_api_key()
        server = await start_server(
            config,
            generator,
            self.inputs.renderer,
            api_key=key,
            step=self.step,
            ray_address=ray_address,
            shares_weights=not config.grpo.concurrent,
        )
        try:
            write_address(path, server, key)
            self.console.say([f"HTTP server: {', '.join(server.base_urls)} (key in {path})"])
            yield server
        finally:
            await server.close()
            path.unlink(missing_ok=True)

    def _checkpoint(self) -> LoadedCheckpoint | None:
        """The newest whole checkpoint."""
        root = self.run_dir.checkpoints
        checkpoint = load_checkpoint(root) if saved_steps(root) else None
        if checkpoint is None:
            self.console.notice("no checkpoint was written yet: the run starts again")
        self.step = 0 if checkpoint is None else checkpoint.step
        return checkpoint

    async def _train(self, live: Live, checkpoint: LoadedCheckpoint | None) -> None:
        stream = self.inputs.stream
        if self.resumed:
            # Now that all has started: a resume that fails before leaves the run as it was.
            self.run_dir.supersede(-1 if checkpoint is None else self.step)
        with ExitStack() as stack:
            decisions = decisions_at(checkpoint, self.config, stream, self.run_dir)
            stack.callback(decisions.event_log.close)
            metrics = MetricsLogger(self.run_dir, self.config.logging)
            stack.push(lambda error, *_: metrics.close(failed=error is not None))
            file = TimelineFile(self.run_dir.timeline)
            stack.callback(file.close)
            timeline = Timeline(variant_of(self.config.env))
            live.generator.at_work = timeline.engine
            progress = Progress(decisions, metrics, ReplayBuffer(), MismatchGuard(), timeline, file)
            if checkpoint is not None:
                state = read_state(checkpoint.path)
                progress.guard.bad_steps = state["bad_steps"]
                # Checkpoints of earlier versions say nothing of it.
                live.environment.restore(state.get("environment", {}))
                compute_blocking(live.cluster.learner.load, checkpoint.path)
                restore_randomness(checkpoint.path, state)
                restore_buffer(checkpoint.path, progress.buffer, decisions.scheduler, stream)
            wiring = Wiring(self.config, self.inputs, self.run_dir, live, progress)
            parts = wiring.parts(self.console, self.stop)
            trainer = Trainer(parts, self.step)
            self.console.watch(parts.rollouts.activity)
            self._introduce()
            try:
                self.ended = await trainer.run()
            finally:
                self.step = trainer.step
            self._conclude()

    def _introduce(self) -> None:
        """Says in words what will happen."""
        grpo = self.config.grpo
        self.console.say(plan_in_words(self.config, self.inputs.stream))
        self.console.say([f"run directory: {self.run_dir.root}"])
        if self.step:
            rest = "going on" if self.step != grpo.max_num_steps else "nothing is left to do"
            self.console.notice(f"{rest} after step {self.step}")
        lines = read_metrics(self.run_dir.metrics) if self.step else []
        rewards = [line.get("train/reward_mean") for line in lines]
        self.console.begin(
            grpo.max_num_steps, self.step, [reward for reward in rewards if reward is not None]
        )

    def _conclude(self) -> None:
        """Says how it ended and what to do next."""
        root = self.run_dir.root
        self.console.finish(
            [
                f"ended after step {self.step} ({reason_in_words(self.ended)})",
                f"look at rollouts: rlrun view {root}",
                f"go on: rlrun resume {root}{LONGER.get(self.ended, '')}",
            ]
        )
