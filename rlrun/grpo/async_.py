# SPDX-License-Identifier: Apache-2.0
"""Asynchronous GRPO: rollouts go on while the learner trains, with weights of a bounded age."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlrun.interfaces import GRPO, component, setting
from rlrun.scheduler.settings import OnAgeLimit

if TYPE_CHECKING:
    from rlrun.grpo.trainer import Trainer


@component("grpo/async")
@dataclass(kw_only=True, slots=True)
class AsyncGRPO(GRPO):
    """A step trains on whatever has finished; no trained token is older than the age bound."""

    concurrent: ClassVar[bool] = True

    max_trajectory_age_steps: int = setting(ge=0)
    max_num_in_flight_batches_in_generation: int | None = setting(ge=1)
    on_age_limit: OnAgeLimit
    max_expiries: int = setting(ge=0)
    in_flight_weight_updates: bool
    recompute_kv_cache_after_weight_updates: bool

    @property
    def in_flight_batches(self) -> int:
        """Batches that may generate at once, as set or derived from the age."""
        if self.max_num_in_flight_batches_in_generation is not None:
            return self.max_num_in_flight_batches_in_generation
        return min(2, max(1, self.max_trajectory_age_steps))

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """What is in flight must be trainable within the age bound."""
        most = max(1, self.max_trajectory_age_steps)
        if self.in_flight_batches > most:
            yield (
                ("max_num_in_flight_batches_in_generation", "max_trajectory_age_steps"),
                f"max_num_in_flight_batches_in_generation={self.in_flight_batches} is above "
                f"max(1, max_trajectory_age_steps)={most}",
                "Leave it at null, which is derived from the age, or raise the age",
            )
        if not self.in_flight_weight_updates and self.recompute_kv_cache_after_weight_updates:
            yield (
                ("in_flight_weight_updates", "recompute_kv_cache_after_weight_updates"),
                "recompute_kv_cache_after_weight_updates=true has no effect with "
                "in_flight_weight_updates=false: nothing is running when weights change",
                "Set recompute_kv_cache_after_weight_updates=false",
            )

    async def train(self, trainer: Trainer) -> None:
        """Takes each verb in turn; rollouts go on beside all of them."""
        while (batch := await trainer.next_batch()) is not None:
            await trainer.update(batch)
            if not self.in_flight_weight_updates:
                await trainer.quiesce()
            await trainer.refit()
            await trainer.finish_step()
