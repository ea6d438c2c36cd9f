# SPDX-License-Identifier: Apache-2.0
"""A run that is to end ends with the step in progress, also where the next batch is ready."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from rlrun.batching.fifo import Fifo
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.parts import Parts
from rlrun.grpo.trainer import Trainer
from rlrun.metrics.timeline import Timeline
from rlrun.process.signals import StopSignal
from rlrun.process.time_limit import TimeLimit
from rlrun.run_dir.event_log import EventLog
from rlrun.scheduler import Finish, Scheduler, StepTrained
from rlrun.scheduler.events import GroupFinished, Outcome, TokenCategory, Verdict
from tests.factories import config
from tests.scheduler.scheduler_cases import settings


@dataclass
class OnlyTheScheduler:
    """Rollouts that finish when the test says so."""

    decisions: Decisions
    collector: Any = field(default_factory=lambda: SimpleNamespace(busy_seconds=0.0))
    timeline: Timeline = field(default_factory=Timeline)

    def apply(self, event: Any) -> None:
        self.decisions.apply(event)

    async def settle(self) -> None:
        pass


class Ignored:
    """Takes whatever it is told."""

    def __getattr__(self, name: str) -> Any:
        return lambda *values, **named: None


async def nothing(*_: object) -> None:
    pass


def trainer_with_a_batch_ready(folder: Path, *overrides: str) -> Trainer:
    """Step 1 is trained and not refitted, and the groups of step 2 have finished."""
    values = settings(prompts_per_step=1, max_age=2, in_flight_batches=2)
    decisions = Decisions(Scheduler(values, Fifo()), EventLog(folder / "events.jsonl"))
    decisions.apply(decisions.scheduler.started_event())
    for admit in decisions.take_admits():
        decisions.apply(GroupFinished(admit.position, admit.attempt, 0, 10, Verdict.KEEP))
    train = decisions.take_train()
    assert train is not None
    outcomes = dict.fromkeys(train.positions, Outcome.TRAINED)
    decisions.apply(StepTrained(1, outcomes, {TokenCategory.TRAINED: 10}))
    assert decisions.scheduler.held
    ignored = Ignored()
    parts = SimpleNamespace(
        config=config("grpo=async", "checkpointing.enabled=false", *overrides),
        rollouts=OnlyTheScheduler(decisions),
        generator=SimpleNamespace(refit=nothing),
        probe=SimpleNamespace(check=nothing),
        server=None,
        stop=StopSignal(),
        time_limit=TimeLimit(None),
        metrics=ignored,
        timeline_file=ignored,
        console=ignored,
        run_dir=ignored,
    )
    return Trainer(cast("Parts", parts), step=0)


def asked(trainer: Trainer, by: str) -> None:
    """Something asks for the end."""
    if by == "time_limit":
        late = TimeLimit(60.0, clock=lambda: 61.0)
        cast("Any", trainer.parts).time_limit = late
    else:
        trainer.parts.stop.signal_number = 15


@pytest.mark.parametrize("by", ["time_limit", "interrupted"])
def test_no_step_begins_when_the_end_was_asked_for_during_an_update(
    tmp_path: Path, by: str
) -> None:
    trainer = trainer_with_a_batch_ready(tmp_path, "grpo.val_period=0")
    asked(trainer, by)
    asyncio.run(trainer.refit())
    assert trainer.decisions.ended == Finish(by)
    assert trainer.decisions.take_train() is None
    assert trainer.decisions.scheduler.held == (1,), "the next batch waits for a resume"


@pytest.mark.parametrize("by", ["time_limit", "interrupted"])
def test_no_step_begins_when_the_end_was_asked_for_during_a_validation(
    tmp_path: Path, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = trainer_with_a_batch_ready(tmp_path, "grpo.val_period=1")

    async def validate() -> dict[str, float]:
        asked(trainer, by)
        return {}

    async def no_metrics(*_: object) -> dict[str, float]:
        return {}

    monkeypatch.setattr(trainer, "validate", validate)
    monkeypatch.setattr("rlrun.grpo.trainer.complete_metrics", no_metrics)
    trainer.batch = cast("Any", "what step 1 was trained on")

    async def end_of_step() -> None:
        await trainer.refit()
        assert trainer.decisions.ended is None
        await trainer.finish_step()

    asyncio.run(end_of_step())
    assert trainer.decisions.ended == Finish(by)
    assert trainer.decisions.take_train() is None
    assert trainer.decisions.scheduler.held == (1,)


def test_the_next_step_begins_at_once_otherwise(tmp_path: Path) -> None:
    trainer = trainer_with_a_batch_ready(tmp_path, "grpo.val_period=0")
    asyncio.run(trainer.refit())
    train = trainer.decisions.take_train()
    assert train is not None and train.step == 2
