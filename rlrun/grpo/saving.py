# SPDX-License-Identifier: Apache-2.0
"""What a checkpoint of a run holds, written and read in one place."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from transformers import PreTrainedTokenizerBase

from rlrun.checkpoint.store import CheckpointStore, saved_folders
from rlrun.checkpoint.training_state import (
    library_writes,
    load_json,
    load_tensors,
    restore_rng_state,
    rng_state,
    save_json,
    save_tensors,
)
from rlrun.config.schema import Layout
from rlrun.errors import StorageError
from rlrun.interfaces import Environment
from rlrun.learner.handle import LearnerHandle
from rlrun.metrics.logs import MetricsLogger
from rlrun.prepare import MismatchGuard
from rlrun.prompts import PromptStream
from rlrun.replay_buffer import ReplayBuffer
from rlrun.run_dir.event_log import EventLog
from rlrun.scheduler.machine import Scheduler

log = logging.getLogger(__name__)

BUFFER = "buffer.jsonl"


@dataclass(frozen=True, slots=True)
class Saver:
    """Writes checkpoints of a run.

    Attributes:
        store: Where to, and what is kept.
        learner: Weights and optimizer.
        tokenizer: Saved beside the weights, so that the folder is a model on its own.
        scheduler: Its state includes the frontier of the prompt stream.
        stream: Recognized again on resume.
        buffer: Finished groups that wait to be trained.
        guard: Counts bad steps.
        environment: Counts what failed.
        event_log: Made durable first; its length is part of the checkpoint.
        metrics: Made durable first.
        layout: Sharded tensors are written while training goes on.
    """

    store: CheckpointStore
    learner: LearnerHandle
    tokenizer: PreTrainedTokenizerBase
    scheduler: Scheduler
    stream: PromptStream
    buffer: ReplayBuffer
    guard: MismatchGuard
    environment: Environment
    event_log: EventLog
    metrics: MetricsLogger
    layout: Layout

    def save(self, step: int, metrics: Mapping[str, float]) -> float:
        """Saves after a step; of sharded tensors ``finish`` says whether they could be written.

        Returns:
            Seconds for which it held up the run.

        Raises:
            StorageError: The disk refuses; earlier checkpoints stay as they are.
        """
        started = time.perf_counter()
        self.metrics.sync()
        self.event_log.sync()
        try:
            if self.layout is Layout.SHARDED:
                self.store.begin(step, self._begin, metrics)
            else:
                self.store.save(step, self._write, metrics)
        except (SafetensorError, OSError) as error:
            # From transformers, which writes model and tokenizer its own way.
            remedy = "Free disk space; earlier checkpoints are whole, and the run can be resumed"
            raise StorageError(f"checkpoint of step {step}", str(error), remedy) from error
        return time.perf_counter() - started

    def finish(self) -> None:
        """Waits for the last save.

        Raises:
            RlrunError: It failed; earlier checkpoints stay as they are.
        """
        self.store.finish()

    def _write(self, folder: Path) -> None:
        self.learner.save(folder)
        self._write_rest(folder)

    def _begin(self, folder: Path) -> Callable[[], None]:
        pending = self.learner.save_shards(folder)
        self._write_rest(folder)
        return pending.finish

    def _write_rest(self, folder: Path) -> None:
        with library_writes(folder):
            self.tokenizer.save_pretrained(folder / "policy")
        tensors, values = rng_state()
        save_tensors(folder / "rng.safetensors", tensors)
        state = {
            "rng": values,
            "scheduler": self.scheduler.state(),
            "stream": self.stream.state(),
            "bad_steps": self.guard.bad_steps,
            "environment": self.environment.state(),
        }
        save_json(folder / "state.json", state)
        self.buffer.write(folder / BUFFER, self.scheduler.held)


def restore_buffer(
    folder: Path, buffer: ReplayBuffer, scheduler: Scheduler, stream: PromptStream
) -> None:
    """Puts back the groups that were ready, or in training, when the checkpoint was written.

    Raises:
        StorageError: They cannot be read.
    """
    buffer.read(folder / BUFFER, scheduler.held, stream.prompt_at)


def read_state(folder: Path) -> dict[str, Any]:
    """What ``Saver`` wrote to state.json.

    Raises:
        StorageError: It cannot be read.
    """
    state: dict[str, Any] = load_json(folder / "state.json")
    return state


def made_so_far(checkpoints: Path) -> tuple[int, int]:
    """Steps made and prompts handed out at the newest readable checkpoint; 0 and 0 without one.

    What a checkpoint holds says so, not the name of its folder: one whose name says another step is
    left out, as ``load_checkpoint`` leaves it out.
    """
    for step, folder in sorted(saved_folders(checkpoints).items(), reverse=True):
        try:
            state = read_state(folder)["scheduler"]
            made = int(state["at"]["trained"]), int(state["frontier"]["next_position"])
        except (StorageError, LookupError, TypeError, ValueError) as error:
            # Whoever loads it says what is wrong with it, and takes the one before.
            log.debug("checkpoint of step %d cannot be read: %s", step, error)
            continue
        if made[0] == step:
            return made
    return 0, 0


def restore_randomness(folder: Path, state: Mapping[str, Any]) -> None:
    """Puts all random generators back to where they were."""
    path = folder / "rng.safetensors"
    restore_rng_state(load_tensors(path), state["rng"], str(path))
