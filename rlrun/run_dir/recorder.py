# SPDX-License-Identifier: Apache-2.0
"""Writes the records of a run while it goes on: trained/ and validation/."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from rlrun.config.schema import Logging
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import TrainedLine, trained_line, validation_line, write_lines
from rlrun.run_dir.retention import keep_newest
from rlrun.types import Trajectory, TrajectoryGroup

if TYPE_CHECKING:
    from rlrun.batch import Batch, Floats, Sample


class Recorder:
    """Writes one file per step, or nothing where the settings say so."""

    def __init__(
        self, run_dir: RunDir, settings: Logging, prompt_text: Callable[[Trajectory], str]
    ) -> None:
        """Keeps the parts.

        Args:
            run_dir: Where to.
            settings: ``trained`` and ``validation_rows`` say what is written, and
                ``keep_trained_steps`` for how long.
            prompt_text: The text of the tokens before a trajectory's first sampled one.
        """
        self._run_dir, self._settings = run_dir, settings
        self._prompt_text = prompt_text

    def trained(self, batch: Batch, target_steps: Mapping[int, int] | None = None) -> None:
        """Writes what a step trains, before it does.

        Args:
            batch: The batch; masked samples are written as well.
            target_steps: The step that each group (by its prompt's position) was admitted for,
                where the schedule assigns one.

        Raises:
            StorageError: The file cannot be written.
        """
        if self._settings.trained:
            targets = target_steps or {}
            lines = self._trained_lines(batch, targets)
            write_lines(self._run_dir.trained_file(batch.step), lines)
            if self._settings.keep_trained_steps is not None:
                keep_newest(self._run_dir, self._settings.keep_trained_steps)

    def validation(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Writes what a validation saw; ``step`` is the last finished one.

        Raises:
            StorageError: The file cannot be written.
        """
        if self._settings.validation_rows:
            lines = (
                validation_line(step, group.prompt, trajectory, self._prompt_text(trajectory))
                for group in groups
                for trajectory in group.trajectories
            )
            write_lines(self._run_dir.validation_file(step), lines)

    def _trained_lines(self, batch: Batch, targets: Mapping[int, int]) -> Iterator[TrainedLine]:
        for sample in batch.samples:
            yield trained_line(
                step=batch.step,
                target_step=targets.get(sample.prompt.position),
                prompt=sample.prompt,
                trajectory=sample.trajectory,
                reward=sample.reward,
                advantages=_over_tokens(sample, sample.token_advantages),
                prev_logprobs=_over_tokens(sample, sample.prev_logprobs),
                sample_loss_mask=sample.masked is None,
                agent_ref=_agent_ref(sample),
                prompt_text=self._prompt_text(sample.trajectory),
            )


def _agent_ref(sample: Sample) -> object:
    """What the row says of its agent, or who it was where the row says nothing."""
    named = sample.prompt.row.payload.get("agent_ref")
    agent = sample.trajectory.agent
    return named if named is not None or agent is None else {"name": agent}


def _over_tokens(sample: Sample, values: Floats | np.float64) -> list[float]:
    """Values of the sampled tokens at their places among all tokens; 0 elsewhere."""
    spread = np.zeros(len(sample.trajectory.token_ids), dtype=np.float64)
    spread[np.asarray(sample.trajectory.loss_mask, dtype=np.bool_)] = values
    result: list[float] = spread.tolist()
    return result
