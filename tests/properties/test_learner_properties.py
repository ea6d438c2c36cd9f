# SPDX-License-Identifier: Apache-2.0
"""Under random shapes: however the work is cut, ordered or laid out, the gradient is the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.batch import Masked, Sample
from rlrun.learner.learner import Learner
from rlrun.learner.rows import TokenRows
from tests.factories import sample, trajectory
from tests.learner.conftest import new_learner

FIXED = ("policy.optimizer.lr=0", "policy.max_grad_norm=null", "loss.level=sequence")
SLOW = settings(
    max_examples=15,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SHAPES = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=9)


@pytest.fixture(scope="module")
def learner() -> Learner:
    torch.set_num_threads(1)
    return new_learner(*FIXED)


@pytest.fixture(scope="module")
def packing() -> Learner:
    return new_learner(*FIXED, "policy.sequence_packing=true")


def samples_of(shapes: list[tuple[int, int]], seed: int, spread: float = 1.0) -> list[Sample]:
    rng = np.random.default_rng(seed)
    made = []
    for i, (prompt, response) in enumerate(shapes):
        before = rng.integers(3, 270, prompt).tolist()
        sampled = rng.integers(3, 270, response).tolist()
        logprobs = rng.normal(-3.0, spread, response).tolist()
        one = trajectory(sampled, before=before, logprobs=logprobs)
        made.append(sample(one, position=i // 3, advantage=float(rng.normal()), seed=i))
    return made


def gradient(learner: Learner, samples: list[Sample], budget: int = 8192) -> torch.Tensor:
    learner.policy = replace(learner.policy, train_micro_batch_tokens=budget)
    learner.update([samples], step=1)
    return torch.cat(
        [
            torch.zeros_like(p).flatten() if p.grad is None else p.grad.flatten().clone()
            for p in learner.model.parameters()
        ]
    )


def distance(ours: torch.Tensor, theirs: torch.Tensor) -> float:
    return float((ours - theirs).norm() / theirs.norm().clamp(min=1e-12))


@SLOW
@given(shapes=SHAPES, seed=st.integers(0, 99), budget=st.integers(21, 120))
def test_cut_and_packing(
    learner: Learner, packing: Learner, shapes: list[tuple[int, int]], seed: int, budget: int
) -> None:
    samples = samples_of(shapes, seed)
    whole = gradient(learner, samples)
    assert distance(gradient(learner, samples, budget), whole) < 1e-5
    assert distance(gradient(packing, samples, budget), whole) < 1e-5


@SLOW
@given(shapes=SHAPES, seed=st.integers(0, 99), data=st.data())
def test_permutation_of_groups_and_samples(
    learner: Learner, shapes: list[tuple[int, int]], seed: int, data: st.DataObject
) -> None:
    samples = samples_of(shapes, seed)
    shuffled = data.draw(st.permutations(samples))
    assert distance(gradient(learner, shuffled), gradient(learner, samples)) < 1e-5


@SLOW
@given(shapes=SHAPES, seed=st.integers(0, 99), copies=st.integers(1, 3))
def test_duplicated_masked_rows(
    learner: Learner, shapes: list[tuple[int, int]], seed: int, copies: int
) -> None:
    samples = samples_of(shapes, seed)
    masked = [replace(s, masked=Masked.OVERLONG, advantage=0.0) for s in samples] * copies
    assert torch.equal(gradient(learner, [*samples, *masked]), gradient(learner, samples))


@SLOW
@given(shapes=SHAPES, seed=st.integers(0, 99))
def test_extreme_log_ratios_leave_everything_finite(
    learner: Learner, shapes: list[tuple[int, int]], seed: int
) -> None:
    samples = samples_of(shapes, seed, spread=200.0)
    far = [
        replace(s, prev_logprobs=s.generation_logprobs * (-1) ** i) for i, s in enumerate(samples)
    ]
    assert gradient(learner, far).isfinite().all()


@SLOW
@given(shapes=SHAPES, seed=st.integers(0, 99))
def test_a_batch_that_is_masked_as_a_whole_moves_nothing(
    learner: Learner, shapes: list[tuple[int, int]], seed: int
) -> None:
    before = [p.detach().clone() for p in learner.model.parameters()]
    masked = [replace(s, masked=Masked.FAILED, advantage=0.0) for s in samples_of(shapes, seed)]
    assert learner.update([masked], step=1).keys() == {"train/lr"}
    assert all(a.equal(b) for a, b in zip(before, learner.model.parameters(), strict=True))


def padded_left(samples: list[Sample]) -> TokenRows:
    """The rows of TokenRows.padded with the padding on the other side."""
    right = TokenRows.padded(
        [s.trajectory.token_ids for s in samples],
        [s.trajectory.loss_mask for s in samples],
        torch.device("cpu"),
    )
    lengths = torch.tensor([len(s.trajectory.token_ids) for s in samples])
    width = right.token_ids.shape[1]
    mask = (torch.arange(width) < lengths[:, None]).long()
    shifts = (width - lengths).tolist()
    trained = torch.tensor([s.trajectory.num_sampled for s in samples])

    def rolled(rows: torch.Tensor) -> torch.Tensor:
        return torch.stack([row.roll(n) for row, n in zip(rows, shifts, strict=True)])

    return replace(
        right,
        token_ids=rolled(right.token_ids),
        attention_mask=rolled(mask),
        position_ids=rolled(right.position_ids),
        predecessors=right.predecessors + torch.tensor(shifts).repeat_interleave(trained),
    )


@SLOW
@given(shapes=SHAPES, seed=st.integers(0, 99))
def test_padding_side(learner: Learner, shapes: list[tuple[int, int]], seed: int) -> None:
    samples = samples_of(shapes, seed)
    right = TokenRows.padded(
        [s.trajectory.token_ids for s in samples],
        [s.trajectory.loss_mask for s in samples],
        torch.device("cpu"),
    )
    with torch.no_grad():
        ours, theirs = learner.forward(padded_left(samples)), learner.forward(right)
    torch.testing.assert_close(ours.logprobs, theirs.logprobs, atol=1e-5, rtol=1e-5)
