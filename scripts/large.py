# SPDX-License-Identifier: Apache-2.0
"""Makes a run of many steps over a large data set, and times the commands that must cope with it.

Two steps are trained; what they wrote is written again and again by rlrun's own writers, under the
prompts and steps that the real scheduler decides on, so that ``rlrun audit`` finds a history that
holds together and ``rlrun resume`` goes on. Each command is started as a user starts it; told are
its seconds, its peak memory and, of a report, its size. The exit code is 1 if a command fails.

Example:
    python scripts/large.py --folder /tmp/large
    python scripts/large.py --folder /tmp/large --reuse
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

from _runs import ROOT, UNVALIDATED, Command, peak_bytes

from rlrun.batching.fifo import Fifo
from rlrun.checkpoint.store import CheckpointStore
from rlrun.config import Loaded, load
from rlrun.config.origin_record import origin_record
from rlrun.derived import scheduler_settings
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.saving import Saver
from rlrun.inputs import Inputs, read_inputs
from rlrun.metrics.logs import MetricsLogger, read_metrics
from rlrun.metrics.timeline import TimelineFile
from rlrun.prepare import MismatchGuard
from rlrun.replay_buffer import ReplayBuffer
from rlrun.report.run_data import read_timeline
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.event_log import EventLog
from rlrun.run_dir.records import TrainedLine, read_trained, write_lines
from rlrun.run_dir.status import RunState
from rlrun.scheduler import (
    Event,
    GroupFinished,
    Outcome,
    Scheduler,
    StepTrained,
    TokenCategory,
    VersionPublished,
)
from rlrun.types import Prompt

SAMPLES = 2
"""Of a group."""

COMMAND_S = 900.0

log = logging.getLogger("large")


@dataclass(frozen=True)
class Sizes:
    """How large everything is."""

    steps: int
    rows: int
    rollouts: int

    @property
    def prompts(self) -> int:
        """Groups of a step."""
        return max(1, self.rollouts // self.steps // SAMPLES)


@dataclass(frozen=True)
class Pattern:
    """What two real steps wrote: metrics, timeline, and one line of trained/."""

    metrics: dict[str, Any]
    timeline: dict[str, Any]
    rollout: TrainedLine


def write_rows(path: Path, count: int) -> None:
    """A data set of so many additions."""
    with path.open("w") as file:
        for number in range(count):
            a, b = number % 1000, number // 1000
            row = {"problem": f"What is {a} + {b}?", "answer": str(a + b), "source": "synthetic"}
            file.write(json.dumps(row) + "\n")


def flags(folder: Path, sizes: Sizes) -> tuple[str, ...]:
    """The run's command line, without its length and its run_dir."""
    return (
        "+recipe=quickstart",
        f"data.train={{source: {folder / 'rows.jsonl'}, split: null}}",
        f"grpo.num_prompts_per_step={sizes.prompts}",
        f"grpo.num_generations_per_prompt={SAMPLES}",
        *UNVALIDATED,
    )


def pattern_of(folder: Path, sizes: Sizes) -> Pattern:
    """Trains two steps of the same run with few rows."""
    run_dir = folder / "pattern"
    small = flags(folder, sizes), "data.train.limit=1000", "grpo.max_num_steps=2"
    command = Command(
        "train", *small[0], *small[1:], f"run_dir={run_dir}", output=folder / "pattern.txt"
    )
    if command.wait(COMMAND_S) != 0:
        raise SystemExit(command.text())
    found = RunDir.read(run_dir)
    rollout = next(iter(read_trained(found.trained_file(2))))
    return Pattern(read_metrics(found.metrics)[-1], read_timeline(found.timeline)[-1], rollout)


class Maker:
    """Writes a run.

    Args:
        run_dir: Where to.
        loaded: Its configuration.
        inputs: Its rows.
        pattern: Of what it writes.
    """

    def __init__(self, run_dir: RunDir, loaded: Loaded, inputs: Inputs, pattern: Pattern) -> None:
        self.run_dir, self.config, self.inputs = run_dir, loaded.config, inputs
        self.pattern, self.random = pattern, random.Random(0)
        self.tokens = SAMPLES * sum(pattern.rollout["token_loss_mask"])

    def make(self) -> None:
        """Makes all steps and the checkpoint of the last one."""
        config, run_dir, stream = self.config, self.run_dir, self.inputs.stream
        log_ = EventLog(run_dir.events)
        decisions = Decisions(Scheduler(scheduler_settings(config, stream), Fifo()), log_)
        metrics, timeline = MetricsLogger(run_dir, config.logging), TimelineFile(run_dir.timeline)
        decisions.apply(decisions.scheduler.started_event())
        while decisions.ended is None:
            version = decisions.scheduler.version
            for admit in decisions.take_admits():
                decisions.apply(GroupFinished(admit.position, admit.attempt, version, self.tokens))
            train = decisions.take_train()
            if train is not None:
                self._step(train.step, train.positions, metrics, timeline)
                for event in self._trained(train.step, train.positions):
                    decisions.apply(event)
        self._save(decisions, metrics)
        metrics.close()
        timeline.close()
        log_.close()
        run_dir.write_status(RunState.DONE, step=self.steps, reason="max_steps", exit_code=0)

    @property
    def steps(self) -> int:
        """Of the whole run."""
        return self.config.grpo.max_num_steps or 0

    def _trained(self, step: int, positions: Sequence[int]) -> Iterator[Event]:
        outcomes = dict.fromkeys(positions, Outcome.TRAINED)
        yield StepTrained(step, outcomes, {TokenCategory.TRAINED: self.tokens * len(positions)})
        yield VersionPublished(step)

    def _step(
        self, step: int, positions: Sequence[int], metrics: MetricsLogger, timeline: TimelineFile
    ) -> None:
        prompts = [self.inputs.stream.prompt_at(position) for position in positions]
        lines = (self._line(step, p, n) for p in prompts for n in range(SAMPLES))
        write_lines(self.run_dir.trained_file(step), lines)
        values = {
            name: value if value is None else value * self.random.uniform(0.9, 1.1)
            for name, value in self.pattern.metrics.items()
            if name not in ("step", "time")
        }
        values["tokens/trained"] = self.tokens * len(positions) * step
        metrics.log(step, values)
        timeline.write({**self.pattern.timeline, "step": step})

    def _line(self, step: int, prompt: Prompt, sample: int) -> TrainedLine:
        line = self.pattern.rollout.copy()
        line["step"], line["sample_index"] = step, sample
        line["prompt_id"], line["group_id"] = prompt.prompt_id, prompt.group_id
        line["reward"] = line["unfiltered_reward"] = float(self.random.random() < step / self.steps)
        return line

    def _save(self, decisions: Decisions, metrics: MetricsLogger) -> None:
        cluster = self.config.cluster.start(self.config, self.run_dir.root)
        saver = Saver(
            store=CheckpointStore(self.run_dir.checkpoints, self.config.checkpointing),
            learner=cluster.learner,
            tokenizer=self.inputs.renderer.tokenizer,
            scheduler=decisions.scheduler,
            stream=self.inputs.stream,
            buffer=ReplayBuffer(),
            guard=MismatchGuard(),
            environment=self.config.env.start(),
            event_log=decisions.event_log,
            metrics=metrics,
            layout=self.config.checkpointing.layout,
        )
        saver.save(self.steps, {})
        cluster.close()


def make(folder: Path, sizes: Sizes) -> None:
    """Makes the data set and the run."""
    started = time.monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    write_rows(folder / "rows.jsonl", sizes.rows)
    pattern = pattern_of(folder, sizes)
    loaded = load([*flags(folder, sizes), f"grpo.max_num_steps={sizes.steps}"])
    inputs = read_inputs(loaded.config, log.info)
    with RunDir.create(folder / "run") as run_dir:
        run_dir.write_config(loaded.yaml())
        run_dir.write_origins(origin_record(loaded.origins, {}))
        # Nothing of it has to survive a crash, and ten thousand files take minutes otherwise.
        with mock.patch("os.fsync"):
            Maker(run_dir, loaded, inputs, pattern).make()
    log.info("made in %.0f s", time.monotonic() - started)


def timed(*arguments: str) -> tuple[int, float, float, str]:
    """Exit code, seconds, peak memory in MiB and output of a command."""
    started = time.monotonic()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "rlrun", *arguments],
            env=environment,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        peak = 0
        # What the kernel tells at the end includes the memory of this process, its parent.
        while process.poll() is None:
            peak = max(peak, peak_bytes(process.pid))
            time.sleep(0.02)
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read().decode(errors="replace")
    return process.returncode, seconds, peak / 2**20, text


def commands(folder: Path, sizes: Sizes) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Name and arguments of what is timed; the last ones change the run."""
    run = str(folder / "run")
    own = flags(folder, sizes)
    prompt = next(iter(read_trained(folder / "run/trained/step_000001.jsonl")))["prompt_id"]
    yield "check", ("check", *own, "grpo.max_num_steps=1")
    yield "view", ("view", run)
    yield "view --steps 20", ("view", run, "--steps", "20")
    yield "view --prompt", ("view", run, "--prompt", prompt)
    yield "report", ("report", run)
    yield "plot", ("plot", run)
    yield "plot --png", ("plot", run, "--png")
    yield "audit", ("audit", run)
    yield "train, one step", ("train", *own, "grpo.max_num_steps=1", f"run_dir={folder / 'one'}")
    yield "resume, one step", ("resume", run, f"grpo.max_num_steps={sizes.steps + 1}")


def main() -> int:
    """Makes and times; the exit code."""
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, help="of the run; it stays")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--rollouts", type=int, default=100_000)
    parser.add_argument("--make", action="store_true", help="time nothing")
    parser.add_argument("--reuse", action="store_true", help="what is in the folder already")
    parser.add_argument("--only", nargs="+", default=[], help="names of commands to time")
    arguments = parser.parse_args()
    sizes = Sizes(arguments.steps, arguments.rows, arguments.rollouts)
    if not arguments.reuse:
        make(arguments.folder, sizes)
    if arguments.make:
        return 0
    failed = False
    log.info("| command | seconds | peak MiB |")
    log.info("|---|---|---|")
    for name, line in commands(arguments.folder, sizes):
        if arguments.only and name not in arguments.only:
            continue
        code, seconds, memory, text = timed(*line)
        failed |= code != 0
        log.info("| %s | %.1f | %.0f |%s", name, seconds, memory, f" {text}" * (code != 0))
    report = arguments.folder / "run" / "report.html"
    if report.exists():
        log.info("report.html: %.2f MB", report.stat().st_size / 1e6)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
