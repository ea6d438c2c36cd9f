# SPDX-License-Identifier: Apache-2.0
"""Declared metrics and how their parts become one value."""

from __future__ import annotations

import math
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.metrics import (
    METRICS,
    Reduction,
    UndeclaredMetric,
    Weighted,
    combine,
    find,
    is_declared,
)

ROOT = Path(__file__).resolve().parent.parent

PUBLIC = """
train/reward_mean train/loss train/grad_norm train/lr train/advantage_std
train/zero_variance_groups train/response_tokens_mean train/truncated_fraction train/entropy
validation/accuracy validation/reward_mean age/mean age/max tokens/generated tokens/trained
tokens/stale tokens/filtered tokens/zero_signal tokens/surplus tokens/errored tokens/cancelled
tokens/lost tokens/buffered tokens/in_flight perf/step_s perf/generated_tokens_per_s
perf/trained_tokens_per_s perf/ceiling_efficiency perf/speedup_over_sync perf/per_gpu_over_sync
perf/straggler_stretch perf/exposed_generation_s idle/trainer_s idle/generator_s
idle/trainer_s/waiting_groups correction/ess correction/clipped_fraction correction/mismatch_kl
correction/token_mult_prob_error rollout/length_bias refit/seconds refit/probe_max_abs_diff
buffer/groups buffer/expired_groups rollout/failed_groups
""".split()


@pytest.mark.parametrize("name", PUBLIC)
def test_public_names_are_declared(name: str) -> None:
    assert is_declared(name)


def test_every_declaration_is_complete() -> None:
    for metric in METRICS.values():
        assert re.fullmatch(r"[a-z]+(/([a-z_]+|<[a-z]+>))+", metric.name)
        assert metric.unit and metric.meaning.endswith(".")


def test_patterns_take_any_part_but_no_empty_one() -> None:
    assert find("reward/format/strict").name == "reward/<part>"
    assert find("agent/math agent/turns").name == "agent/<agent>/<value>"
    for name in ("reward/", "agent/math", "agent//turns", "train/rewardmean"):
        assert not is_declared(name)
        with pytest.raises(UndeclaredMetric, match=re.escape(repr(name))):
            find(name)


def test_what_depends_on_the_clock_is_timing() -> None:
    timing = {metric.name for metric in METRICS.values() if metric.timing}
    assert {"perf/step_s", "idle/trainer_s/<cause>", "refit/seconds"} <= timing
    assert not timing & {"train/loss", "tokens/trained", "age/max"}


def test_maximum_minimum_and_sum_are_not_averaged() -> None:
    groups = [
        {"rollout/response_tokens_max": 50, "rollout/response_tokens_min": 10, "rollout/turns": 3},
        {"rollout/response_tokens_max": 90, "rollout/response_tokens_min": 20, "rollout/turns": 5},
    ]
    assert combine(groups) == {
        "rollout/response_tokens_max": 90,
        "rollout/response_tokens_min": 10,
        "rollout/turns": 8,
    }


def test_microbatches_of_equal_size_average() -> None:
    values = combine([{"train/kl_to_reference": 0.1}, {"train/kl_to_reference": 0.3}])
    assert values == {"train/kl_to_reference": pytest.approx(0.2)}


def test_means_of_ranks_are_weighted_by_their_tokens() -> None:
    ranks = [{"train/entropy": Weighted(1.0, 2)}, {"train/entropy": Weighted(0.0, 8)}]
    assert combine(ranks) == {"train/entropy": pytest.approx(0.2)}


def test_a_source_of_nothing_has_no_say() -> None:
    assert combine([{"train/entropy": Weighted(math.nan, 0)}]) == {}
    ranks = [{"train/entropy": Weighted(math.nan, 0)}, {"train/entropy": Weighted(0.5, 3)}, {}]
    assert combine(ranks) == {"train/entropy": 0.5}


def test_last_value_counts_where_all_agree() -> None:
    assert combine([{"train/lr": 0.1}, {"train/lr": 0.2}]) == {"train/lr": 0.2}


def test_undeclared_names_are_refused() -> None:
    with pytest.raises(UndeclaredMetric):
        combine([{"train/made_up": 1.0}])


@pytest.mark.parametrize(
    "name", ["age/max", "rollout/reward_min", "train/entropy", "rollout/turns"]
)
def test_not_a_number_is_not_hidden_by_the_others(name: str) -> None:
    for values in ([math.nan, 1.0], [1.0, math.nan]):
        assert math.isnan(combine([{name: value} for value in values])[name])


@given(
    st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(1e-3, 1e3)), min_size=1, max_size=20),
    st.randoms(use_true_random=False),
)
def test_order_does_not_matter_and_a_mean_lies_between(
    parts: list[tuple[float, float]], generator: random.Random
) -> None:
    shuffled = generator.sample(parts, len(parts))
    for reduction in (Reduction.MEAN, Reduction.SUM, Reduction.MIN, Reduction.MAX):
        name = next(m.name for m in METRICS.values() if m.reduction is reduction)
        first = combine([{name: Weighted(*part)} for part in parts])[name]
        assert first == combine([{name: Weighted(*part)} for part in shuffled])[name]
        if reduction is Reduction.MEAN:
            values = [value for value, _ in parts]
            assert min(values) - 1e-6 <= first <= max(values) + 1e-6


def test_declarations_load_nothing_heavy() -> None:
    program = "import sys, rlrun.metrics; print({'torch', 'numpy', 'rich'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_page_of_metrics_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "docs_metrics.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
