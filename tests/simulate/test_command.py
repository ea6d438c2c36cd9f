# SPDX-License-Identifier: Apache-2.0
"""`rlrun simulate` as a user types it: output, errors, runs to learn from."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rlrun.errors import ConfigError, StorageError
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import TrainedLine, write_lines
from rlrun.simulate.command import make_workload, simulate_command
from rlrun.simulate.from_run import fit_rates, read_run
from rlrun.simulate.options import Options
from tests.conftest import environment, rlrun

SECONDS = ("--mean-seconds", "60", "--train-seconds", "60")
QUICK = ("--steps", "20", "--prompts-per-step", "8", "--age", "1,2,4", "--in-flight", "1,2")


def options(**changes: Any) -> Options:
    """The command's own defaults, with changes."""
    values: dict[str, Any] = dict.fromkeys(Options.__dataclass_fields__)
    values |= {
        "age": "1,2",
        "in_flight": "1,2",
        "batching": "fifo",
        "on_age_limit": "hold",
        "max_expiries": 2,
        "in_flight_weight_updates": True,
        "steps": 10,
        "seed": 0,
    }
    return Options(**{**values, **changes})


def answer(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(
        simulate_command(options(**changes), as_json=True, plot=None)
    )
    return found


# --- the command line -----------------------------------------------------------------------------


def test_the_answer_says_whether_and_which_and_how(tmp_path: Path) -> None:
    picture = tmp_path / "grid.svg"
    done = rlrun("simulate", *SECONDS, *QUICK, "--plot", str(picture))
    assert (done.code, done.err) == (0, "")
    assert "Async is worth it here: " in done.out
    assert "Pass: grpo=async grpo.max_trajectory_age_steps=" in done.out
    assert " s) needs age " in done.out
    assert picture.read_text().startswith("<svg ")


def test_equal_calls_give_equal_output_and_another_seed_another() -> None:
    first, again = (rlrun("simulate", *SECONDS, *QUICK, "--json").out for _ in range(2))
    other = rlrun("simulate", *SECONDS, *QUICK, "--json", "--seed", "1").out
    assert first == again != other
    found = json.loads(first)
    assert {"workload", "synchronous", "splits", "rows", "advice"} == found.keys()
    advised = found["rows"][found["advice"]["row"]]
    assert f"grpo.max_trajectory_age_steps={advised['plan']['max_age']}" in found["advice"]["flags"]
    assert advised["result"]["ceiling_efficiency"] <= 1


def test_no_torch_is_needed() -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "rlrun", "simulate", *SECONDS, *QUICK],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines() if "|" in line}
    assert "rlrun.simulate.clock" in names
    assert not {"torch", "transformers", "numpy", "hydra"} & {n.partition(".")[0] for n in names}


def test_all_mistakes_are_listed_at_once() -> None:
    wrong = ("--mean-seconds", "-1", "--gpus", "8", "--age", "2,x", "--on-age-limit", "holt")
    done = rlrun("simulate", *wrong)
    assert (done.code, done.out) == (2, "")
    lines = done.err.splitlines()
    assert "error: --mean-seconds=-1.0: is out of range. Give a number above 0." in lines
    assert "error: --gpus: has no effect with --mean-seconds. Leave it out." in lines
    assert "error: --train-seconds: is missing; --mean-seconds needs it. Give it." in lines
    assert any(line.startswith("error: --age=2,x: 'x' is no whole number") for line in lines)
    assert any("there is no 'holt'; did you mean hold" in line for line in lines)


@pytest.mark.parametrize(
    ("changes", "where"),
    [
        ({}, "--from, --mean-seconds, --mean-tokens"),
        ({"mean_seconds": 1.0, "mean_tokens": 1.0}, "--from, --mean-seconds, --mean-tokens"),
        ({"mean_seconds": float("nan"), "train_seconds": 1.0}, "--mean-seconds=nan"),
        ({"mean_seconds": 1e308, "train_seconds": 1.0}, "--mean-seconds=1e+308"),
        ({"log_sd": 6.0}, "--log-sd=6.0"),
        ({"log_sd": -0.1}, "--log-sd=-0.1"),
        ({"prompt_correlation": 1.5}, "--prompt-correlation=1.5"),
        ({"steps": 0}, "--steps=0"),
        ({"age": "0"}, "--age=0"),
        ({"age": "1,2", "in_flight": "4"}, "--in-flight=4"),
        ({"batching": "fifo,"}, "--batching=fifo,"),
        ({"validation_seconds": 1.0}, "--validation-seconds, --validation-period"),
        ({"generating_gpus": "2"}, "--generating-gpus"),
        ({"mean_tokens": 10.0, "sequence_rate": 1.0}, "--train-rate"),
        ({"mean_tokens": 10.0, "train_rate": 1.0}, "--sequence-rate"),
        ({"mean_tokens": 10.0, "train_rate": 1.0, "sequence_rate": 1.0, "gpus": 8}, "--gpus"),
        ({"gpus": 1}, "--gpus=1"),
        ({"gpus": 4, "generating_gpus": "4"}, "--generating-gpus=4"),
        ({"from_run": Path("x"), "log_sd": 1.0}, "--log-sd"),
        ({"from_run": Path("x"), "half_speed_at": 1.0}, "--half-speed-at"),
    ],
)
def test_impossible_values_are_refused(changes: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        answer(**changes)
    assert where in [problem.where for problem in caught.value.problems]
    assert caught.value.exit_code == 2


def test_gpus_are_shared_out() -> None:
    tokens = {
        "mean_tokens": 200.0,
        "max_tokens": 1000,
        "sequence_rate": 50.0,
        "half_speed_at": 8.0,
        "train_rate": 400.0,
        "prompts_per_step": 8,
        "gpus": 4,
    }
    found = answer(**tokens)
    assert [row["plan"]["generating_gpus"] for row in found["splits"]] == [1, 2, 3]
    assert len({row["plan"]["generating_gpus"] for row in found["rows"]}) == 1
    given = answer(**tokens, generating_gpus="3,1")
    assert given["splits"] == []
    assert {row["plan"]["generating_gpus"] for row in given["rows"]} == {1, 3}


# --- from a run -----------------------------------------------------------------------------------


def line_of(step: int, group: int, sample: int, tokens: int) -> TrainedLine:
    return {
        "step": step,
        "target_step": None,
        "prompt_id": f"q:{group}",
        "group_id": f"0/q:{group}",
        "sample_index": sample,
        "agent_ref": None,
        "prompt": "q",
        "response": "a",
        "token_ids": [1] * (2 + tokens),
        "token_loss_mask": [0, 0] + [1] * tokens,
        "sample_loss_mask": 1,
        "advantages": [0.0] * (2 + tokens),
        "generation_logprobs": [0.0] * (2 + tokens),
        "prev_logprobs": [0.0] * (2 + tokens),
        "weight_versions": [[step - 1, 2, 2 + tokens]],
        "reward": 0.0,
        "rewards": {},
        "unfiltered_reward": 0.0,
        "input_length": 2,
        "total_length": 2 + tokens,
        "truncated": False,
        "stop_reason": "stop",
    }


LENGTHS = [
    [(5, 10), (20, 5), (8, 8)],
    [(30, 5), (3, 5), (9, 2)],
    [(10, 10), (10, 11), (12, 12)],
    [(7, 40), (20, 20), (1, 3)],
]
"""Tokens of each sample of each group of each step."""


def recorded(root: Path, **changes: Any) -> Path:
    """A run whose generation takes 0.1 s per token of the longest and 0.01 s of all."""
    with RunDir.create(root) as run:
        run.write_config("a: 1\n")
        metrics = []
        for step, groups in enumerate(LENGTHS, start=1):
            lines = [
                line_of(step, 10 * step + g, s, tokens)
                for g, lengths in enumerate(groups)
                for s, tokens in enumerate(lengths)
            ]
            write_lines(run.trained_file(step), lines)
            every = [tokens for lengths in groups for tokens in lengths]
            values = {
                "perf/generation_s": 0.1 * max(every) + 0.01 * sum(every),
                "perf/logprobs_s": 0.02 * sum(every),
                "perf/update_s": 0.03 * sum(every),
                "refit/seconds": 0.5,
                "age/max": 0,
                **changes,
            }
            metrics.append(json.dumps({"step": step, "time": 1.0, **values}) + "\n")
        run.metrics.write_text("".join(metrics))
    return root


def test_a_run_gives_its_lengths_rates_and_times(tmp_path: Path) -> None:
    found = read_run(recorded(tmp_path / "run"))
    assert list(found.groups) == [group for groups in LENGTHS for group in groups]
    assert found.prompts_per_step == 3
    assert fit_rates(found.generation) == pytest.approx((0.1, 0.01))
    assert found.train_token_s == pytest.approx(0.05)
    assert found.refit_s == 0.5
    workload = make_workload(options(from_run=tmp_path / "run"))
    assert workload.lengths.samples == 2
    assert workload.lengths.draw(5, 0) in found.groups
    assert set(workload.lengths.draw(5, 1)) <= set(workload.lengths.draw(5, 0))


def test_flags_win_over_the_run_and_gpus_scale_it(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run")
    costs = make_workload(options(from_run=run, refit_seconds=0.0, train_rate=10.0)).costs
    assert (costs.refit_s, costs.train_token_s) == (0.0, 0.1)
    # What the run's four GPUs did together takes one of them four times as long.
    costs = make_workload(options(from_run=run, gpus=4)).costs
    assert costs.sequence_s == pytest.approx(0.1)
    assert costs.saturated_s == pytest.approx(0.04)
    assert costs.train_token_s == pytest.approx(0.2)


def test_an_asynchronous_run_gives_lengths_but_no_rates(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", **{"age/max": 2})
    with pytest.raises(ConfigError, match="does not say how long generation alone takes"):
        answer(from_run=run)
    assert answer(from_run=run, sequence_rate=10.0)["workload"]["costs"]["sequence_s"] == 0.1


def test_rates_are_never_negative() -> None:
    # Longer answers that take less time, and nothing but the longest that counts.
    assert min(fit_rates([(10, 100, 1.0), (20, 100, 0.5)])) >= 0
    assert fit_rates([(10, 100, 1.0), (20, 300, 2.0), (5, 500, 0.5)]) == pytest.approx((0.1, 0))
    assert fit_rates([(10, 100, 1.0)]) in [(0.1, 0.0), (0.0, 0.01)]


def test_what_cannot_be_read_is_a_storage_error(tmp_path: Path) -> None:
    done = rlrun("simulate", "--from", str(tmp_path))
    assert done.code == 7
    assert "holds no run (no config.yaml)" in done.err
    empty = tmp_path / "empty"
    with RunDir.create(empty) as run:
        run.write_config("a: 1\n")
    with pytest.raises(StorageError, match="holds no trained step"):
        answer(from_run=empty)
    damaged = recorded(tmp_path / "damaged")
    (damaged / "trained" / "step_000002.jsonl").write_text("{\n")
    with pytest.raises(StorageError, match="step_000002.jsonl:1"):
        answer(from_run=damaged)
    with pytest.raises(StorageError, match="cannot write"):
        simulate_command(
            options(mean_seconds=1.0, train_seconds=1.0),
            as_json=False,
            plot=tmp_path / "missing" / "grid.svg",
        )


def test_a_real_run_can_be_learned_from(small_run: Path) -> None:
    found = answer(from_run=small_run)
    assert found["workload"]["prompts_per_step"] == 4
    assert found["workload"]["samples_per_prompt"] == 4
    assert found["synchronous"]["result"]["step_s"] > 0
