# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from rlrun.batch import Batch
from rlrun.batching.fifo import Fifo
from rlrun.grpo.decisions import Decisions
from rlrun.grpo.due import Due
from rlrun.run_dir.event_log import EventLog
from rlrun.scheduler import Fail, Finish, Scheduler
from tests.factories import config, group, sample, trajectory
from tests.scheduler.scheduler_cases import settings


@pytest.fixture
def decisions(tmp_path: Path) -> Decisions:
    return Decisions(Scheduler(settings(), Fifo()), EventLog(tmp_path / "events.jsonl"))


def test_validations_and_checkpoints_come_at_their_periods(decisions: Decisions) -> None:
    keys = ("grpo.val_period=4", "grpo.val_start_at=5", "checkpointing.save_period=3")
    due = Due(config(*keys), decisions)
    assert [step for step in range(1, 13) if due.validation(step)] == [8, 12]
    assert [step for step in range(1, 13) if due.save(step)] == [3, 6, 9, 12]


@pytest.mark.parametrize(
    ("ended", "validated"),
    [
        (Finish("max_steps"), True),
        (Finish("data_end"), True),
        (Finish("time_limit"), False),
        (Finish("interrupted"), False),
        (Fail("too many failures", ""), False),
    ],
)
def test_an_end_is_saved_and_validated_where_the_run_came_to_it(
    decisions: Decisions, ended: Finish | Fail, validated: bool
) -> None:
    off = ("grpo.val_period=0", "grpo.val_at_end=true", "checkpointing.save_period=100")
    due = Due(config(*off), decisions)
    assert not (due.end or due.save(7) or due.validation(7) or due.last_validation)
    decisions.ended = ended
    assert due.end and due.save(7)
    assert due.validation(7) == due.last_validation == validated


def test_a_metric_ends_the_run_from_its_threshold_on(decisions: Decisions) -> None:
    name = "validation/accuracy"
    due = Due(
        config(
            f"grpo.stop_at_validation_metric={name}",
            "grpo.stop_at_validation_threshold=0.5",
            "grpo.val_period=1",
        ),
        decisions,
    )
    assert due.early_end({name: 0.49}) is None
    assert due.early_end({}) is None
    assert due.early_end({name: 0.5}) == f"{name}=0.5 reached 0.5"
    decisions.ended = Finish("max_steps")
    assert due.early_end({name: 1.0}) is None


def test_a_batch_without_signal_is_stepped_only_where_others_move_the_weights(
    decisions: Decisions,
) -> None:
    one = sample(trajectory(), advantage=0.0)
    still = Batch(1, (group([1.0]),), (one,))
    moving = replace(still, samples=(replace(one, advantage=0.5),))
    due = Due(config(), decisions)
    assert due.update(moving) and not due.update(still)
    weightless = replace(moving.samples[0], weights=np.zeros_like(one.weights))
    assert not due.update(replace(moving, samples=(weightless,)))
    assert not due.update(replace(still, samples=()))
    assert Due(config("loss.reference_policy_kl_penalty=0.1"), decisions).update(still)
