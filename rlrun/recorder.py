# SPDX-License-Identifier: Apache-2.0
"""Writes what was trained and what a validation saw into the run directory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rlrun.batch import Batch, Floats, Sample
from rlrun.config.schema import Logging
from rlrun.records import TrainedLine, trained_line, validation_line, write_lines
from rlrun.renderer import Renderer
from rlrun.run_dir import RunDir
from rlrun.types import TrajectoryGroup


@dataclass(frozen=True, slots=True)
class Recorder:
    """Keeps the rows of each step, as ``logging`` asks for.

    Attributes:
        run_dir: Where to.
        renderer: Decodes prompts.
        settings: Which rows are kept.
    """

    run_dir: RunDir
    renderer: Renderer
    settings: Logging

    def trained(self, batch: Batch) -> None:
        """Writes trained/step_*.jsonl.

        Raises:
            StorageError: It cannot be written.
        """
        if self.settings.trained:
            groups = {group.prompt.group_id: group for group in batch.groups}
            lines = (
                self._line(batch.step, groups[sample.prompt.group_id], sample)
                for sample in batch.samples
            )
            write_lines(self.run_dir.trained_file(batch.step), lines)

    def validation(self, step: int, groups: Sequence[TrajectoryGroup]) -> None:
        """Writes validation/step_*.jsonl.

        Raises:
            StorageError: It cannot be written.
        """
        if self.settings.validation_rows:
            lines = (
                validation_line(step, group, trajectory, self._prompt_text(group))
                for group in groups
                for trajectory in group.trajectories
            )
            write_lines(self.run_dir.validation_file(step), lines)

    def _line(self, step: int, group: TrajectoryGroup, sample: Sample) -> TrainedLine:
        advantages = np.full(len(sample.prev_logprobs), sample.advantage, np.float32)
        return trained_line(
            step=step,
            target_step=None,
            group=group,
            trajectory=sample.trajectory,
            advantages=_aligned(sample, advantages),
            prev_logprobs=_aligned(sample, sample.prev_logprobs),
            sample_loss_mask=sample.masked is None,
            reward=sample.reward,
            unfiltered_reward=sample.trajectory.reward,
            agent_ref=group.prompt.row.payload.get("agent_ref"),
            prompt_text=self._prompt_text(group),
        )

    def _prompt_text(self, group: TrajectoryGroup) -> str:
        return self.renderer.decode(group.prompt.token_ids, skip_special=False)


def _aligned(sample: Sample, values: Floats) -> list[float]:
    """Values of the sampled tokens at their places among all tokens, 0 elsewhere."""
    mask = np.asarray(sample.trajectory.loss_mask, dtype=np.bool_)
    aligned = np.zeros(len(mask), np.float32)
    aligned[mask] = values
    return [float(value) for value in aligned.tolist()]
