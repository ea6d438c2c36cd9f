# SPDX-License-Identifier: Apache-2.0
"""Synchronous GRPO: generate, update and refit take turns."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from rlrun.interfaces import GRPO, component

if TYPE_CHECKING:
    from rlrun.grpo.trainer import Trainer


@component("grpo/sync")
@dataclass(kw_only=True, slots=True)
class SyncGRPO(GRPO):
    """Every token is sampled from the weights that it trains: age 0."""

    concurrent: ClassVar[bool] = False

    async def train(self, trainer: Trainer) -> None:
        """Takes each verb in turn until the scheduler ends the run."""
        while (batch := await trainer.next_batch()) is not None:
            await trainer.update(batch)
            await trainer.refit()
            await trainer.finish_step()
