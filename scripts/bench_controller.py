# SPDX-License-Identifier: Apache-2.0
"""What a group costs the process that controls a run, apart from generating, scoring and training.

Everything between the generator and the learner is the real thing: scheduler, event log, collector,
one task per rollout, rendering of prompts, deadlines, timeline, buffer. The generator answers at
once with tokens that it has ready, the environment with a reward, and a step trains nothing. Prints
milliseconds of CPU time per group and exits with 1 if they are above --limit-ms.

Example:
    python scripts/bench_controller.py --groups 4000 --samples 8 --tokens 200
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from rlrun.batching.fifo import Fifo
from rlrun.collector import Collector
from rlrun.config import load
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.rollouts import Rollouts
from rlrun.interfaces import Environment, Episode, Generator
from rlrun.process.heap import long_lived_heap
from rlrun.prompts import PromptStream
from rlrun.rendering.renderer import Renderer
from rlrun.replay_buffer import ReplayBuffer
from rlrun.rollout import Rollout, RolloutSettings
from rlrun.rollout.deadlines import Deadline
from rlrun.run_dir.event_log import EventLog
from rlrun.scheduler import (
    OnAgeLimit,
    Outcome,
    Scheduler,
    SchedulerSettings,
    StepTrained,
    TokenCategory,
    VersionPublished,
)
from rlrun.types import (
    Completion,
    EnvStep,
    GenerationRequest,
    Row,
    Sampling,
    StopReason,
    VersionSpan,
)

MAX_AGE, BATCHES_IN_FLIGHT = 4, 2
ROLLOUT_TIMEOUT_S = 600.0
"""The default of grpo.rollout_timeout_s: a timer for every sample."""


class Ready(Generator):
    """Answers at once, with as many tokens as it was told."""

    lockstep = False

    def __init__(self, tokens: int) -> None:
        self.version, self.tokens = 0, tokens
        self._ids, self._logprobs = tuple(range(10, 10 + tokens)), (-0.5,) * tokens

    async def generate(self, requests: Sequence[GenerationRequest]) -> list[Completion]:
        """One completion per request."""
        # As any engine: the answer comes with a later turn of the event loop.
        await asyncio.sleep(0)
        spans = (VersionSpan(self.version, 0, self.tokens),)
        return [Completion(self._ids, self._logprobs, StopReason.STOP, spans) for _ in requests]

    async def score(self, token_ids: Sequence[int]) -> list[float]:
        """Not used."""
        raise NotImplementedError

    async def refit(self, version: int) -> None:
        """Takes the version."""
        self.version = version

    async def close(self) -> None:
        """Nothing is open."""


class Coin(Environment):
    """Rewards every other sample."""

    async def step(self, episode: Episode) -> EnvStep:
        """Scores the answer at once."""
        return EnvStep(reward=float(episode.sample_index % 2))

    async def close(self) -> None:
        """Nothing is open."""


def parts(options: argparse.Namespace, folder: Path) -> tuple[Rollouts, Ready]:
    """Scheduler, collector and what they need, over one epoch of prompts."""
    renderer = Renderer.load(load(["+recipe=quickstart"]).config.policy)
    rows = [
        Row(f"r:{n}", ({"role": "user", "content": f"What is {n} + 1?"},), str(n + 1), {}, "")
        for n in range(options.groups)
    ]
    stream = PromptStream(rows, renderer.prompt_ids, checksum="", seed=0, epochs=1, shuffle=True)
    settings = SchedulerSettings(
        prompts_per_step=options.prompts,
        max_age=MAX_AGE,
        in_flight_batches=BATCHES_IN_FLIGHT,
        on_age_limit=OnAgeLimit.HOLD,
        max_expiries=2,
        max_generation_failures=2,
        max_attempts=2,
        max_gen_batches=None,
        rows_per_epoch=options.groups,
        total_positions=options.groups,
        max_steps=None,
    )
    generator = Ready(options.tokens)
    sampling = RolloutSettings(
        Sampling(1.0), options.tokens, options.tokens + 64, 1, ROLLOUT_TIMEOUT_S, seed=1
    )
    collector = Collector(
        Rollout(generator, Coin(), renderer, sampling),
        stream,
        ReplayBuffer(),
        num_samples=options.samples,
        scored_needed=2,
        lacks_signal=None,
        deadline=Deadline(None, ROLLOUT_TIMEOUT_S),
    )
    decisions = Decisions(Scheduler(settings, Fifo()), EventLog(folder / "events.jsonl"))
    return Rollouts(decisions, collector, None), generator


async def control(rollouts: Rollouts, generator: Ready) -> int:
    """Trains nothing on everything; the number of groups."""
    decisions, collector, groups = rollouts.decisions, rollouts.collector, 0
    decisions.apply(decisions.scheduler.started_event())
    async with rollouts:
        rollouts.carry_out()
        while decisions.ended is None:
            train = decisions.take_train()
            if train is None:
                await rollouts.news()
                continue
            taken = collector.buffer.take(train.positions)
            groups += len(taken)
            tokens = {TokenCategory.TRAINED: sum(group.num_sampled for group in taken)}
            outcomes = dict.fromkeys(train.positions, Outcome.TRAINED)
            rollouts.apply(StepTrained(train.step, outcomes, tokens))
            await generator.refit(train.step)
            rollouts.apply(VersionPublished(train.step))
            rollouts.timeline.take(train.step)
    return groups


def main() -> int:
    """Measures and judges."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--groups", type=int, default=4000)
    parser.add_argument("--samples", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=200, help="per answer")
    parser.add_argument("--prompts", type=int, default=64, help="per step")
    parser.add_argument("--limit-ms", type=float, default=1.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        rollouts, generator = parts(options, Path(folder))
        with long_lived_heap():
            started = time.process_time()
            groups = asyncio.run(control(rollouts, generator))
            spent = (time.process_time() - started) / groups * 1000
    sys.stdout.write(
        f"{groups} groups of {options.samples} x {options.tokens} tokens: "
        f"{spent:.3f} ms of CPU time per group\n"
    )
    return int(spent > options.limit_ms)


if __name__ == "__main__":
    sys.exit(main())
