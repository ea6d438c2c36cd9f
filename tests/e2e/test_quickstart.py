# SPDX-License-Identifier: Apache-2.0
"""The promise of the README: a model that learns to think before it answers."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from rlrun.audit import audit
from rlrun.metrics.logs import read_metrics
from rlrun.metrics.registry import is_declared
from rlrun.run_dir.records import read_trained, read_validation
from tests.conftest import SMALL
from tests.e2e.forked import forked as rlrun


def test_reward_rises(quickstart_run: Path) -> None:
    rewards = [
        line["train/reward_mean"] for line in read_metrics(quickstart_run / "metrics.jsonl")[1:]
    ]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    assert last - first >= 0.3
    assert last >= 0.8


def test_responses_grow_because_thinking_pays(quickstart_run: Path) -> None:
    lines = read_metrics(quickstart_run / "metrics.jsonl")[1:]
    assert lines[0]["train/response_tokens_mean"] < 15
    assert lines[-1]["train/response_tokens_mean"] > 18


def test_held_out_accuracy_rises_with_it(quickstart_run: Path) -> None:
    lines = read_metrics(quickstart_run / "metrics.jsonl")
    accuracy = [line["validation/accuracy"] for line in lines if "validation/accuracy" in line]
    assert accuracy[0] < 0.5 < 0.85 < accuracy[-1]
    assert len(accuracy) == 5


def test_metrics_have_a_line_per_step_and_only_declared_names(quickstart_run: Path) -> None:
    lines = read_metrics(quickstart_run / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(41))
    names = {name for line in lines for name in line} - {"step", "time"}
    assert all(is_declared(name) for name in names)


def test_the_token_ledger_closes_at_every_step(quickstart_run: Path) -> None:
    for line in read_metrics(quickstart_run / "metrics.jsonl")[1:]:
        parts = {name: count for name, count in line.items() if name.startswith("tokens/")}
        assert parts.pop("tokens/generated") == sum(parts.values())


def test_trained_rows_are_unpadded_and_aligned(quickstart_run: Path) -> None:
    for step in (1, 40):
        rows = list(read_trained(quickstart_run / f"trained/step_{step:06d}.jsonl"))
        assert len(rows) == 128
        for row in rows:
            total = row["total_length"]
            aligned = ("token_ids", "token_loss_mask", "advantages", "prev_logprobs")
            assert all(len(row[name]) == total for name in aligned)  # type: ignore[literal-required]
            assert row["response"]
            assert sum(row["token_loss_mask"]) == total - row["input_length"]
            assert row["weight_versions"] == [[step - 1, row["input_length"], total]]


def test_a_validation_asks_each_held_out_prompt_once(quickstart_run: Path) -> None:
    rows = list(read_validation(quickstart_run / "validation/step_000040.jsonl"))
    assert len({row["prompt_id"] for row in rows}) == len(rows) == 500


def test_the_audit_finds_nothing(quickstart_run: Path) -> None:
    assert audit(quickstart_run).ok
    done = rlrun("audit", str(quickstart_run))
    assert done.code == 0, done.out


def test_status_says_done(quickstart_run: Path) -> None:
    status = json.loads((quickstart_run / "status.json").read_text())
    assert (status["state"], status["step"], status["exit_code"]) == ("done", 40, 0)


def test_the_checkpoint_is_a_model_that_transformers_loads(quickstart_run: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = quickstart_run / "checkpoints/step_000040/policy"
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    ids = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 37 + 45?"}],
        add_generation_prompt=True,
        return_tensors="pt",
        return_dict=True,
    )
    answer = model.generate(**ids, max_new_tokens=28, do_sample=False)
    assert "82" in tokenizer.decode(answer[0], skip_special_tokens=True)


def test_view_shows_the_run_and_its_worst_rollout(quickstart_run: Path) -> None:
    done = rlrun("view", str(quickstart_run), "--step", "1", "-n", "1")
    assert done.code == 0, done.err
    assert "What is" in done.out
    assert "reward" in done.out


def test_config_yaml_starts_the_same_run(small_run: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    done = rlrun("train", f"+recipe={small_run / 'config.yaml'}", f"run_dir={again}")
    assert done.code == 0, done.err
    assert untimed(again) == untimed(small_run)


def test_a_run_directory_is_never_overwritten(small_run: Path, tmp_path: Path) -> None:
    run_dir = shutil.copytree(small_run, tmp_path / "run")
    before = (run_dir / "metrics.jsonl").read_bytes()
    done = rlrun("train", *SMALL, f"run_dir={run_dir}")
    assert done.code == 7
    assert "rlrun resume" in done.err
    assert (run_dir / "metrics.jsonl").read_bytes() == before


def untimed(run_dir: Path) -> list[dict[str, float]]:
    """The lines of metrics.jsonl without what depends on the clock."""
    from rlrun.metrics.registry import find

    return [
        {
            name: value
            for name, value in line.items()
            if name == "step" or (name != "time" and not find(name).timing)
        }
        for line in read_metrics(run_dir / "metrics.jsonl")
    ]


def test_a_learning_rate_that_is_far_too_high_is_reported_as_a_collapse(tmp_path: Path) -> None:
    done = rlrun(
        "train",
        "+recipe=quickstart",
        "policy.optimizer.lr=5e-3",
        "grpo.num_prompts_per_step=8",
        "grpo.max_num_steps=30",
        "grpo.val_period=0",
        "grpo.val_at_start=false",
        "grpo.val_at_end=false",
        "checkpointing.metric=null",
        f"run_dir={tmp_path / 'run'}",
    )
    assert done.code == 0, done.err
    assert "collapse" in done.out
