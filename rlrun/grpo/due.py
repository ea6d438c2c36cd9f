# SPDX-License-Identifier: Apache-2.0
"""What is due after a step, by the settings and by what the scheduler decided. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from rlrun.batch import Batch
from rlrun.config.schema import RunConfig
from rlrun.grpo.decisions import Decisions
from rlrun.scheduler.decisions import Finish


@dataclass(frozen=True, slots=True)
class Due:
    """Whether it is time for something.

    Attributes:
        config: Says how often.
        decisions: Says whether the run has ended.
    """

    config: RunConfig
    decisions: Decisions

    @property
    def end(self) -> bool:
        """Whether the scheduler has ended the run."""
        return self.decisions.ended is not None

    @property
    def last_validation(self) -> bool:
        """Whether the run is validated at its end, which it came to rather than being cut short."""
        ended = self.decisions.ended
        complete = isinstance(ended, Finish) and ended.reason in ("max_steps", "data_end")
        return complete and self.config.grpo.val_at_end

    def update(self, batch: Batch) -> bool:
        """A batch without a gradient must not be stepped: momentum would move the weights."""
        loss = self.config.loss
        everyone_moves = loss.reference_policy_kl_penalty > 0 or not loss.needs_advantage
        return bool(batch.trained) and (batch.has_gradient or everyone_moves)

    def validation(self, step: int) -> bool:
        """Whether the weights of a step are validated."""
        return self.last_validation or self._in_period(step)

    def expects_validation(self, step: int) -> bool:
        """Whether a step that has not begun will be validated, as far as that is known."""
        grpo = self.config.grpo
        return self._in_period(step) or (grpo.val_at_end and step == grpo.max_num_steps)

    def _in_period(self, step: int) -> bool:
        grpo = self.config.grpo
        return grpo.val_period > 0 and step % grpo.val_period == 0 and step >= grpo.val_start_at

    def save(self, step: int) -> bool:
        """Whether there is to be a checkpoint of a step."""
        settings = self.config.checkpointing
        return settings.enabled and (self.end or step % settings.save_period == 0)

    def early_end(self, metrics: Mapping[str, float]) -> str | None:
        """Why a validation that found these metrics ends the run; None if it goes on."""
        grpo = self.config.grpo
        name, threshold = grpo.stop_at_validation_metric, grpo.stop_at_validation_threshold
        if name is None or threshold is None or self.end:
            return None
        value = metrics.get(name)
        if value is None or value < threshold:
            return None
        return f"{name}={value:.4g} reached {threshold:.4g}"
