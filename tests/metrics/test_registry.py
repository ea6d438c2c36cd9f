# SPDX-License-Identifier: Apache-2.0
"""Declared metrics."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.metrics.registry import METRICS, UndeclaredMetric, find, is_declared, why_never_logged

ROOT = Path(__file__).resolve().parents[2]

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
    assert find("validation/reward/format").name == "validation/reward/<part>"
    for name in ("reward/", "validation/reward/", "agent/math/turns", "train/rewardmean"):
        assert not is_declared(name)
        with pytest.raises(UndeclaredMetric, match=re.escape(repr(name))):
            find(name)


def test_what_depends_on_the_clock_is_timing() -> None:
    timing = {metric.name for metric in METRICS.values() if metric.timing}
    assert {"perf/step_s", "idle/trainer_s/<cause>", "refit/seconds"} <= timing
    assert not timing & {"train/loss", "tokens/trained", "age/max"}


def test_what_no_present_run_logs_is_said_with_the_reason() -> None:
    assert why_never_logged("train/loss") is None
    assert why_never_logged("reward/format") is None
    assert why_never_logged("idle/trainer_s/waiting_groups") is None
    later = "perf/ceiling_efficiency perf/speedup_over_sync perf/per_gpu_over_sync"
    for name in (*later.split(), "perf/straggler_stretch", "idle/trainer_s/refit"):
        assert why_never_logged(name) == f"{name} is only logged with asynchronous schedules"
    assert "separate engines" in (why_never_logged("refit/probe_max_abs_diff") or "")
    assert "mean validation/accuracy" in (why_never_logged("validation/acuracy") or "")


def test_declarations_load_nothing_heavy() -> None:
    program = (
        "import sys, rlrun.metrics.registry\nprint({'torch', 'numpy', 'rich'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "set()", done.stderr


def test_the_page_of_metrics_is_current() -> None:
    command = [sys.executable, str(ROOT / "scripts" / "docs_metrics.py"), "--check"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
