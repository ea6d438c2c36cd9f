# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.config.schema import Decay, Schedule
from rlrun.learner.schedule import lr_factor


def schedule(**changes: object) -> Schedule:
    values: dict[str, object] = {
        "warmup_steps": 10,
        "warmup_start_factor": 0.0,
        "decay": Decay.COSINE,
        "decay_steps": 100,
        "final_factor": 0.0,
    }
    return Schedule(**(values | changes))  # type: ignore[arg-type]


def test_a_cosine_after_warm_up_has_the_textbook_value() -> None:
    assert 1e-3 * lr_factor(50, schedule()) == pytest.approx(5.868e-4, rel=1e-4)


def test_warm_up_begins_above_zero_and_reaches_the_peak_in_its_last_step() -> None:
    assert lr_factor(1, schedule()) == pytest.approx(0.1)
    assert lr_factor(10, schedule()) == 1.0


def test_a_constant_schedule_stays_at_the_peak() -> None:
    constant = schedule(decay=Decay.CONSTANT, decay_steps=None, warmup_steps=0)
    assert {lr_factor(step, constant) for step in (1, 2, 1000)} == {1.0}


def test_a_linear_decay_ends_at_its_final_factor_and_stays() -> None:
    linear = schedule(decay=Decay.LINEAR, final_factor=0.1)
    assert lr_factor(55, linear) == pytest.approx(0.55)
    assert lr_factor(100, linear) == lr_factor(5000, linear) == pytest.approx(0.1)


@given(step=st.integers(1, 500), warmup=st.integers(0, 50), decay=st.sampled_from(Decay))
def test_the_factor_is_within_zero_and_one(step: int, warmup: int, decay: Decay) -> None:
    assert 0.0 <= lr_factor(step, schedule(warmup_steps=warmup, decay=decay)) <= 1.0
