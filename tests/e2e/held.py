# SPDX-License-Identifier: Apache-2.0
"""Runs that wait within a step until a test has done what it wants to do there.

However fast the machine is, the run has not ended by then; however slow, it is that far.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def held(folder: Path, step: int) -> Path:
    """Is there once the step after ``step`` has its batch."""
    return folder / f"held-{step}"


def go_on(folder: Path, step: int) -> Path:
    """Is waited for then."""
    return folder / f"go-on-{step}"


def hold_after(steps: Sequence[int], folder: Path) -> None:
    """Makes the runs of this process wait after these steps, before the update of the next one.

    Only training waits: rollouts, servers and signals go on.
    """
    from rlrun.grpo.trainer import Trainer

    update = Trainer.update

    async def later(trainer: Trainer, train: Any) -> None:
        if trainer.step in steps:
            held(folder, trainer.step).touch()
            while not go_on(folder, trainer.step).exists():
                await asyncio.sleep(0.01)
        await update(trainer, train)

    Trainer.update = later  # type: ignore[method-assign]
