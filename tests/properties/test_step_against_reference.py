# SPDX-License-Identifier: Apache-2.0
"""A whole step, from groups of every kind to its metrics, against loops over float64 numbers.

The parts have tests of their own; here it is which tokens and samples reach which sum. Log-probs of
the reference are the model's own, a sequence at a time, without the learner's rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rlrun.batch import Batch, Floats, Sample
from rlrun.config.schema import RunConfig
from rlrun.grpo.step_metrics import age_metrics, batch_metrics
from rlrun.grpo.token_outcomes import outcomes, token_categories
from rlrun.learner.learner import Learner
from rlrun.penalties import Penalties
from rlrun.prepare import MismatchGuard, Preparation
from rlrun.scheduler.events import Outcome, TokenCategory
from rlrun.types import StopReason, Trajectory, TrajectoryGroup, VersionSpan
from tests import reference_float64
from tests.factories import config, prompt, trajectory
from tests.learner.conftest import new_learner
from tests.reference_float64 import Options, Token

STEP, FLOOR, THRESHOLD, LONGEST = 9, 6, 1.3, 8
FIXED = (
    *("policy.optimizer.lr=0", "policy.max_grad_norm=null", "policy.train_micro_batch_tokens=64"),
    *("policy.max_total_sequence_length=64", "grpo.overlong_filtering=true"),
    *("grpo.overlong_shaping.enabled=true", f"grpo.overlong_shaping.max_response_tokens={LONGEST}"),
    *("grpo.overlong_shaping.buffer_tokens=4", f"grpo.seq_logprob_error_threshold={THRESHOLD}"),
    *("correction.ess_stop=null", "correction.mismatch_kl_stop=null"),
)
REWARDS = (None, 0.0, 0.25, 1.0)
CASES = {
    "grpo": (
        ("advantage.baseline=leave_one_out",),
        Options("grpo", clip_max=0.28),
        ("tis", "token", None, 2.0),
    ),
    "sequence": (
        ("loss.level=sequence", "correction.level=sequence", "loss.ratio_clip_c=1.1"),
        Options("grpo", level="sequence", clip_max=0.28, clip_c=1.1),
        ("tis", "sequence", None, 2.0),
    ),
    "gspo": (
        (
            *("loss=gspo", "loss.ratio_clip_min=0.01", "loss.ratio_clip_max=0.01"),
            *("correction.type=seq_mask_tis", "correction.ratio_min=0.95"),
            "correction.ratio_max=1.05",
        ),
        Options("gspo", level="sequence", clip_min=0.01, clip_max=0.01),
        ("seq_mask_tis", "token", 0.95, 1.05),
    ),
    "dr_grpo": (
        (
            *("loss=dr_grpo", "loss.normalizer_tokens=8", "advantage.normalize=false"),
            *("correction.type=icepop", "correction.ratio_min=0.8", "correction.ratio_max=1.1"),
        ),
        Options("dr_grpo", normalizer=8),
        ("icepop", "token", 0.8, 1.1),
    ),
    "kl": (
        ("loss.reference_policy_kl_penalty=0.3", "loss.use_on_policy_kl_approximation=true"),
        Options("grpo", clip_max=0.28, kl_penalty=0.3, on_policy_kl=True),
        ("tis", "token", None, 2.0),
    ),
}


@dataclass
class Setup:
    """One configuration with its learner."""

    config: RunConfig
    learner: Learner
    options: Options
    correction: tuple[str, str, float | None, float | None]


@pytest.fixture(scope="module", params=CASES)
def setup(request: pytest.FixtureRequest) -> Setup:
    torch.set_num_threads(1)
    overrides, options, correction = CASES[request.param]
    settings = config(*FIXED, *overrides)
    return Setup(settings, new_learner(*FIXED, *overrides), options, correction)


def true_logprobs(learner: Learner, of: Trajectory) -> list[float]:
    """Of every token but the first, at temperature 1."""
    with torch.no_grad():
        logits = learner.model(torch.tensor([of.token_ids])).logits[0, :-1].double()
    values = logits.log_softmax(-1)
    return [float(values[i, token]) for i, token in enumerate(of.token_ids[1:])]


def random_groups(learner: Learner, seed: int, sizes: list[int]) -> list[TrajectoryGroup]:
    """Failed, flagged, cut, empty, stale and far-off samples among good ones; two-turn ones too."""
    rng = np.random.default_rng(seed)
    groups = []
    for position, size in enumerate(sizes):
        members = []
        for index in range(size):
            length = int(rng.choice([0, 1, 3, 5, 7, 9], p=[0.1, 0.1, 0.2, 0.2, 0.2, 0.2]))
            sampled = rng.integers(3, 270, length).tolist()
            one = trajectory(
                sampled,
                before=rng.integers(3, 270, 4).tolist(),
                reward=REWARDS[int(rng.choice(4, p=[0.1, 0.35, 0.2, 0.35]))],
                sample_index=index,
                flagged=bool(rng.random() < 0.1),
                stop_reason=StopReason.LENGTH if rng.random() < 0.15 else StopReason.STOP,
                version=int(rng.integers(FLOOR - 2, STEP)),
                lost_tokens=int(rng.integers(0, 3)),
            )
            members.append(_two_versions(_told(one, learner, rng), rng))
        groups.append(TrajectoryGroup(prompt(position), tuple(members)))
    return groups


def _told(one: Trajectory, learner: Learner, rng: np.random.Generator) -> Trajectory:
    """With log-probs of a generator that is somewhat off; at times one token is not sampled."""
    mask = list(one.loss_mask)
    if one.num_sampled > 4 and rng.random() < 0.5:
        mask[6] = False
    off = rng.choice([0.05, 0.5], p=[0.8, 0.2])
    true = [0.0, *true_logprobs(learner, one)]
    told = [
        float(np.float32(value + rng.normal(0, off))) if sampled else 0.0
        for value, sampled in zip(true, mask, strict=True)
    ]
    return replace(one, loss_mask=tuple(mask), generation_logprobs=tuple(told))


def _two_versions(one: Trajectory, rng: np.random.Generator) -> Trajectory:
    """The second part was sampled by the newest weights."""
    if not one.weight_versions:
        return one
    (span,) = one.weight_versions
    middle = int(rng.integers(span.start, span.end + 1))
    # One span for each sampled token: what is between turns is in none.
    spans = [
        VersionSpan(span.version if i < middle else STEP - 1, i, i + 1)
        for i in range(span.start, span.end)
        if one.loss_mask[i]
    ]
    return replace(one, weight_versions=tuple(spans))


@dataclass
class Expected:
    """A sample as the formulas have it: its trained tokens as (index, generation, p)."""

    tokens: list[tuple[int, float, float]]
    whole: int
    reward: float | None
    out: bool
    ages: list[int]
    advantage: float = 0.0


def expected_sample(learner: Learner, one: Trajectory) -> Expected:
    true = true_logprobs(learner, one)
    version = {i: s.version for s in one.weight_versions for i in range(s.start, s.end)}
    sampled = [i for i, is_sampled in enumerate(one.loss_mask) if is_sampled]
    kept = [i for i in sampled if version[i] >= FLOOR]
    tokens = [(i, one.generation_logprobs[i], true[i - 1]) for i in kept]
    reward = one.reward
    if reward is not None:
        reward -= min(max((len(sampled) - (LONGEST - 4)) / 4, 0.0), 1.0)
    off = [math.exp(abs(g - p)) for _, g, p in tokens]
    cut = one.stop_reason is StopReason.LENGTH
    out = reward is None or one.flagged or not kept or cut or sum(off) / len(off) > THRESHOLD
    return Expected(tokens, len(sampled), reward, out, [STEP - 1 - version[i] for i in kept])


def expected_samples(setup: Setup, groups: list[TrajectoryGroup]) -> list[Expected]:
    found = []
    for group in groups:
        members = [expected_sample(setup.learner, one) for one in group.trajectories]
        advantage = setup.config.advantage
        values = reference_float64.advantages(
            [None if member.out else member.reward for member in members],
            str(advantage.baseline.value),  # type: ignore[attr-defined]  # the group variant
            advantage.normalize,  # type: ignore[attr-defined]
        )
        for member, value in zip(members, values, strict=True):
            member.advantage = value
        found += members
    return found


def prepared(setup: Setup, groups: list[TrajectoryGroup]) -> tuple[Batch, dict[str, float]]:
    preparation = Preparation(
        learner=setup.learner,
        grpo=setup.config.grpo,
        advantage=setup.config.advantage,
        correction=setup.config.correction,
        max_new_tokens=28,
        asynchronous=True,
        guard=MismatchGuard(),
        penalties=Penalties(setup.config.grpo, lambda ids: "", None),
    )
    done = preparation(STEP, groups, FLOOR)
    metrics = done.metrics | batch_metrics(done.batch, done.entropies) | age_metrics(done.batch)
    return done.batch, metrics


def moved(samples: tuple[Sample, ...], seed: int) -> list[Sample]:
    """The samples as if weights had moved since their log-probs were taken."""
    rng = np.random.default_rng(seed)

    def off(logprobs: Floats) -> Floats:
        return logprobs + rng.normal(0, 0.3, len(logprobs)).astype(np.float32)

    return [
        replace(
            s,
            prev_logprobs=off(s.prev_logprobs),
            ref_logprobs=None if s.ref_logprobs is None else off(s.ref_logprobs),
        )
        for s in samples
    ]


@settings(
    max_examples=5,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    seed=st.integers(0, 2**31),
    sizes=st.lists(st.integers(1, 5), min_size=1, max_size=4),
    minibatch=st.integers(1, 9),
)
def test_step(setup: Setup, seed: int, sizes: list[int], minibatch: int) -> None:
    groups = random_groups(setup.learner, seed, sizes)
    expected = expected_samples(setup, groups)
    batch, metrics = prepared(setup, groups)
    assert [s.masked is not None for s in batch.samples] == [e.out for e in expected]
    for ours, theirs in zip(batch.samples, expected, strict=True):
        assert ours.advantage == pytest.approx(theirs.advantage, rel=1e-6, abs=1e-9)
        assert ours.stale_tokens == theirs.whole - len(theirs.tokens)
        prev = [p for _, _, p in theirs.tokens]
        assert ours.prev_logprobs.tolist() == pytest.approx(prev, abs=2e-4)
    kept = [e for e in expected if not e.out]
    if not kept:
        assert "correction/ess" not in metrics and "age/max" not in metrics
        return
    flags = [[(p, g) for _, g, p in e.tokens] for e in kept]
    weights, correction = reference_float64.correction(flags, *setup.correction)
    flat = np.concatenate([s.weights for s in batch.trained])
    # A ratio at a bound may fall on either side of it.
    assert np.isclose(flat, weights, rtol=1e-3).mean() > 0.8
    for name in ("correction/mismatch_kl", "correction/token_mult_prob_error"):
        assert metrics[name] == pytest.approx(correction[name], rel=1e-3, abs=1e-5)
    ages = [age for e in kept for age in e.ages]
    assert metrics["age/mean"] == pytest.approx(sum(ages) / len(ages))
    assert metrics["age/max"] == max(ages)
    check_books(groups, batch, expected)
    check_update(setup, batch, minibatch, seed)


def check_books(groups: list[TrajectoryGroup], batch: Batch, expected: list[Expected]) -> None:
    counts = token_categories(batch)
    assert sum(counts.values()) == sum(group.num_sampled for group in groups)
    pairs = list(zip(expected, batch.samples, strict=True))
    trained = [e.advantage != 0.0 and bool(s.weights.any()) for e, s in pairs]
    tokens = sum(
        len(e.tokens) for e, is_trained in zip(expected, trained, strict=True) if is_trained
    )
    assert counts.get(TokenCategory.TRAINED, 0) == tokens
    ended = outcomes([group.prompt.position for group in groups], batch)
    members = iter(zip(expected, trained, strict=True))
    for group in groups:
        own = [next(members) for _ in group.trajectories]
        wanted = Outcome.NO_SIGNAL
        if all(e.out for e, _ in own):
            wanted = Outcome.FILTERED
        if any(is_trained for _, is_trained in own):
            wanted = Outcome.TRAINED
        assert ended[group.prompt.position] is wanted


def tokens_of(now: Sample, before: Sample) -> list[Token]:
    """Of a sample whose present log-probs ``now`` has; the advantage is that of all its tokens."""
    refs = before.prev_logprobs if before.ref_logprobs is None else before.ref_logprobs
    columns = (now.prev_logprobs, before.prev_logprobs, now.generation_logprobs, refs, now.weights)
    return [
        Token(c, p, g, f, now.advantage, w)
        for c, p, g, f, w in zip(*(column.tolist() for column in columns), strict=True)
    ]


def check_update(setup: Setup, batch: Batch, minibatch: int, seed: int) -> None:
    """The loss is the mean over the minibatches that are stepped, each with its own divisors."""
    samples = moved(batch.samples, seed)
    everyone = setup.options.kl_penalty > 0
    losses = []
    for start in range(0, len(samples), minibatch):
        chosen = range(start, min(start + minibatch, len(samples)))
        inside = [i for i in chosen if samples[i].masked is None]
        moving = [i for i in inside if samples[i].advantage and samples[i].weights.any()]
        if moving or (inside and everyone):
            tokens = [tokens_of(batch.samples[i], samples[i]) for i in inside]
            losses.append(reference_float64.loss(tokens, setup.options))
    whole = Batch(STEP, batch.groups, tuple(samples))
    found = setup.learner.update(whole.minibatches(minibatch), STEP)
    if not losses:
        assert found.keys() == {"train/lr"}
        return
    mean = sum(losses) / len(losses)
    size = max(map(abs, losses)) + 1e-3
    assert found["train/loss"] == pytest.approx(mean, abs=1e-3 * size)
    if not everyone:
        assert found["train/policy_loss"] == pytest.approx(mean, abs=1e-3 * size)
