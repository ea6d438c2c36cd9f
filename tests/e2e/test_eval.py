# SPDX-License-Identifier: Apache-2.0
"""An evaluation says what a validation of training says, and nothing it does not know."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from rlrun.console.console import Console
from rlrun.errors import ConfigError, DataError, EnvironmentDown, RlrunError, StorageError
from rlrun.evaluation.command import evaluate
from rlrun.evaluation.report import EvalReport, print_report
from rlrun.metrics.logs import read_metrics
from rlrun.run_dir.records import read_validation
from tests.conftest import SMALL
from tests.e2e.forked import forked as rlrun

QUICK = ("+recipe=quickstart", "num_threads=1")


def run_eval(name: object, *overrides: str, **options: Any) -> EvalReport:
    with Console(io.StringIO()) as console:
        return evaluate(str(name), overrides, console, **options)


def validated(run: Path, step: int) -> dict[str, float]:
    """What the validation after a step found."""
    line = next(line for line in read_metrics(run / "metrics.jsonl") if line["step"] == step)
    return {name: line[f"validation/{name}"] for name in ("accuracy", "response_tokens_mean")}


def content(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_embedded_model_is_right_in_a_third_of_the_cases() -> None:
    first, second = run_eval("rlrun:tiny", *QUICK), run_eval("rlrun:tiny", *QUICK)
    assert first == second
    assert abs(first.accuracy - 0.34) <= 0.06
    assert (first.prompts, first.samples, first.failed_samples) == (500, 500, 0)
    assert first.step is None
    one = first.pass_at_k[0]
    assert one.value == first.accuracy
    assert one.low < 0.34 < one.high


@pytest.mark.parametrize("step", [4, 8])
def test_a_checkpoint_has_exactly_what_its_validation_had(
    small_run: Path, tmp_path: Path, step: int
) -> None:
    before = content(small_run)
    out = tmp_path / "rows.jsonl"
    report = run_eval(small_run, step=step, out=out)
    assert report.step == step
    assert report.accuracy == validated(small_run, step)["accuracy"]
    assert report.response_tokens_mean == validated(small_run, step)["response_tokens_mean"]
    assert out.read_bytes() == (small_run / f"validation/step_{step:06d}.jsonl").read_bytes()
    assert content(small_run) == before


def test_an_adapter_has_exactly_what_its_validation_had(tmp_path: Path) -> None:
    run = tmp_path / "run"
    lora = ("policy.lora.enabled=true", "policy.optimizer.lr=3e-3", "grpo.max_num_steps=2")
    assert rlrun("train", *SMALL, *lora, f"run_dir={run}").code == 0
    out = tmp_path / "rows.jsonl"
    report = run_eval(run, out=out)
    assert report.accuracy == validated(run, 2)["accuracy"]
    assert out.read_bytes() == (run / "validation/step_000002.jsonl").read_bytes()
    assert out.read_bytes() != (run / "validation/step_000000.jsonl").read_bytes()


def test_more_samples_give_pass_at_k(tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    report = run_eval("rlrun:tiny", *QUICK, "grpo.max_val_samples=20", samples=6, out=out)
    assert [one.k for one in report.pass_at_k] == [1, 2, 4]
    values = [one.value for one in report.pass_at_k]
    assert values == sorted(values)
    assert values[0] == pytest.approx(report.accuracy)
    rows = list(read_validation(out))
    assert len(rows) == 120
    assert {row["sample_index"] for row in rows} == set(range(6))


def test_a_run_is_evaluated_with_other_settings_if_they_are_given(small_run: Path) -> None:
    report = run_eval(small_run, "generation.val_temperature=0", "grpo.max_val_samples=5")
    assert (report.prompts, report.sampling["temperature"]) == (5, 0)


def test_a_model_needs_no_training_data(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"problem": "What is 1 + 2?", "answer": "3"}\n' * 3)
    lengths = ("policy.max_total_sequence_length=64", "generation.max_new_tokens=28")
    report = run_eval("rlrun:tiny", f"data.validation.source={rows}", "env=math", *lengths)
    assert report.samples == 3


def test_failures_are_counted_and_in_no_mean(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text(
        "def some(response, answer, **row):\n"
        "    if int(answer) % 2:\n"
        "        raise ValueError('odd')\n"
        "    return 1.0\n"
    )
    flags = (*QUICK, "grpo.max_val_samples=12", "env=python")
    out = tmp_path / "rows.jsonl"
    report = run_eval("rlrun:tiny", *flags, f"env.reward_function={rewards}:some", out=out)
    odd = sum(int(row["answer"]) % 2 for row in read_validation(out))
    assert 0 < odd < 12
    assert (report.failed_samples, report.samples) == (odd, 12 - odd)
    assert report.accuracy == 1.0
    assert report.pass_at_k[0].prompts == 12 - odd


def test_if_everything_fails_there_is_no_result(tmp_path: Path) -> None:
    rewards = tmp_path / "rewards.py"
    rewards.write_text("def none(response, answer, **row):\n    raise ValueError('no luck')\n")
    flags = (*QUICK, "grpo.max_val_samples=3", "env=python")
    with pytest.raises(EnvironmentDown, match=r"not one of 3 samples.*no luck"):
        run_eval("rlrun:tiny", *flags, f"env.reward_function={rewards}:none")


NO_VALIDATION = (
    "grpo.val_period=0",
    "grpo.val_at_start=false",
    "grpo.val_at_end=false",
    "checkpointing.metric=null",
    "data.validation.source=null",
    "data.validation.split=null",
)


@pytest.mark.parametrize(
    ("name", "overrides", "options", "error", "message"),
    [
        ("rlrun:tiny", (*QUICK, *NO_VALIDATION), {}, ConfigError, "nothing to evaluate on"),
        ("rlrun:tiny", (*QUICK, "policy.model=x"), {}, ConfigError, "is what is evaluated"),
        ("rlrun:tiny", (*QUICK, "grpo.sed=1"), {}, ConfigError, "grpo.seed"),
        ("rlrun:tiny", QUICK, {"step": 4}, ConfigError, "is no run directory"),
        ("rlrun:tiny", QUICK, {"out": Path("no/such/rows")}, StorageError, "no folder"),
        ("rlrun:huge", QUICK, {}, DataError, "no embedded model rlrun:huge"),
        ("EMPTY", QUICK, {}, DataError, "neither a run"),
        ("RUN", (), {"step": 3}, StorageError, "no checkpoint of step 3"),
        ("RUN", ("policy.lora.enabled=true",), {}, ConfigError, "those of the run"),
        ("RUN", ("policy/model=tiny",), {}, ConfigError, "those of the run"),
        ("RUN/checkpoints/step_000008", (), {}, DataError, "--step"),
    ],
)
def test_what_cannot_be_evaluated_is_said(
    small_run: Path,
    tmp_path: Path,
    name: str,
    overrides: tuple[str, ...],
    options: dict[str, Any],
    error: type[RlrunError],
    message: str,
) -> None:
    place = name.replace("RUN", str(small_run)).replace("EMPTY", str(tmp_path))
    with pytest.raises(error, match=message):
        run_eval(place, *overrides, **options)


def test_a_damaged_checkpoint_is_not_evaluated(small_run: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(small_run, run)
    (run / "checkpoints/step_000008/policy/config.json").unlink()
    with pytest.raises(StorageError, match=r"config\.json is missing"):
        run_eval(run, step=8)


def test_json_is_on_stdout_and_the_table_is_not(small_run: Path, tmp_path: Path) -> None:
    out = tmp_path / "rows.jsonl"
    done = rlrun("eval", str(small_run), "--json", "--samples", "2", "--out", str(out))
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["samples_per_prompt"] == 2
    assert {"k", "value", "low", "high", "prompts"} == found["pass_at_k"][1].keys()
    assert "pass@2" in done.err and "Wilson" in done.err
    scored = rlrun("score", str(out), "env=math")
    assert scored.code == 0, scored.err
    rewards = [json.loads(line)["reward"] for line in scored.out.splitlines()]
    assert sum(rewards) / len(rewards) == found["accuracy"]


def test_errors_end_in_their_exit_code(tmp_path: Path) -> None:
    done = rlrun("eval", str(tmp_path), "+recipe=quickstart")
    assert (done.code, done.out) == (3, "")
    assert done.err.startswith("error: ")


def test_the_table_names_failures_only_where_there_are_some() -> None:
    report = run_eval("rlrun:tiny", *QUICK, "grpo.max_val_samples=2")
    said = io.StringIO()
    print_report(report, said)
    assert "no failures" in said.getvalue()
