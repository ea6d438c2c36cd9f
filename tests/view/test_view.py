# SPDX-License-Identifier: Apache-2.0
"""`rlrun view` on a synthetic run with hostile text."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import subprocess
import sys
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.errors import ConfigError, StorageError
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import TrainedLine, write_lines
from rlrun.run_dir.status import RunState
from rlrun.view import view

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07[red]x[/nope] :smile: \u202eevil\u202c 漢字" + "🙂" * 50 + "\r\nend"
)


def line_of(step: int, sample: int, reward: float | None, response: str = "fine") -> TrainedLine:
    return {
        "step": step,
        "target_step": None,
        "prompt_id": f"gsm8k:{sample // 2}",
        "group_id": f"0/gsm8k:{sample // 2}",
        "sample_index": sample % 2,
        "agent_ref": None,
        "prompt": f"question {sample}",
        "response": response,
        "token_ids": [1] * (3 + sample),
        "token_loss_mask": [0] + [1] * (2 + sample),
        "sample_loss_mask": int(reward is not None),
        "advantages": [0.0] + [0.25 * (sample - 1)] * (2 + sample),
        "generation_logprobs": [0.0] * (3 + sample),
        "prev_logprobs": [0.0] * (3 + sample),
        "weight_versions": [[step - 1, 1, 3 + sample]],
        "reward": reward,
        "rewards": {"correct": reward},
        "unfiltered_reward": reward,
        "input_length": 1,
        "total_length": 3 + sample,
        "truncated": False,
        "stop_reason": "stop",
    }


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    with RunDir.create(tmp_path / "run") as run:
        run.write_config("a: 1\n")
        run.write_status(RunState.DONE, step=2, reason="max_steps", exit_code=0)
        lines = [{"step": n, "time": 1.0, "train/reward_mean": 0.25 * n} for n in (1, 2)]
        lines[1]["validation/accuracy"] = 0.625
        lines[1]["train/loss"] = None  # type: ignore[assignment]  # not finite
        run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
        write_lines(run.trained_file(1), [line_of(1, n, 0.0) for n in range(4)])
        write_lines(
            run.trained_file(2),
            [
                line_of(2, 0, 0.5),
                line_of(2, 1, 1.0, HOSTILE),
                line_of(2, 2, 0.0, "wrong"),
                line_of(2, 3, None, "failed"),
            ],
        )
    return run


def shown(run: RunDir, encoding: str = "utf-8", **options: object) -> str:
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding=encoding)
    view(run.root, file=file, **options)  # type: ignore[arg-type]  # options of view
    file.flush()
    return raw.getvalue().decode(encoding)


def headings(text: str) -> list[str]:
    return re.findall(r"^prompt (gsm8k:\d, sample \d)", text, re.MULTILINE)


def test_the_summary_says_how_it_went(run: RunDir) -> None:
    text = shown(run, count=0)
    assert f"{run.root}: done (all steps made), step 2" in text
    assert re.search(r"^reward +0\.25 +0\.5 +0\.375 +▁█", text, re.MULTILINE)
    assert re.search(r"^validation accuracy +0\.625 ", text, re.MULTILINE)
    assert headings(text) == []


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("worst", [3, 2, 0]),
        ("best", [1, 0, 2]),
        ("longest", [3, 2, 1]),
        ("shortest", [0, 1, 2]),
        ("advantage", [3, 0, 2]),
    ],
)
def test_trajectories_come_in_the_order_asked_for(run: RunDir, sort: str, order: list[int]) -> None:
    expected = [f"gsm8k:{n // 2}, sample {n % 2}" for n in order]
    assert headings(shown(run, sort=sort)) == expected


def test_a_trajectory_is_shown_with_all_that_decided_about_it(run: RunDir) -> None:
    text = shown(run, sort="best", count=2)
    assert "prompt gsm8k:0, sample 0: reward 0.5 (correct 0.5)" in text
    facts = "advantage -0.25, stop reason stop, 2 sampled tokens of 3, weights 1"
    assert facts in text
    assert "question 0" in text and "fine" in text
    assert "reward none" in shown(run) and "not in the loss" in shown(run)


def test_hostile_text_is_shown_and_does_nothing(run: RunDir) -> None:
    text = shown(run, sort="best", count=1)
    assert "\\x1b[2J\\x1b]0;owned\\x07[red]x[/nope] :smile: \\u202eevil\\u202c 漢字🙂" in text
    assert all(unicodedata.category(c)[0] != "C" for c in text if c != "\n")


def test_hostile_text_does_nothing_on_a_terminal_either(run: RunDir) -> None:
    program = (
        "import sys; from pathlib import Path; from rlrun.view import view;"
        "view(Path(sys.argv[1]), sort='best', count=1)"
    )
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", program, str(run.root)],
        stdout=theirs,
        env={**os.environ, "TERM": "xterm-256color", "COLUMNS": "60"},
    )
    os.close(theirs)
    output = b""
    while True:
        try:
            output += os.read(ours, 65536)
        except OSError:
            break
    assert child.wait() == 0
    os.close(ours)
    text = output.decode()
    assert "\x1b[2J" not in text and "\x1b]" not in text and "\u202e" not in text
    assert set(re.findall(r"\x1b(\[[0-9;]*)(.)", text)) and "\\x1b[2J" in text
    assert {kind for _, kind in re.findall(r"\x1b(\[[0-9;]*)(.)", text)} == {"m"}


def test_an_ascii_pipe_gets_escapes(run: RunDir) -> None:
    text = shown(run, encoding="ascii", sort="best", count=1)
    assert "\\u6f22" in text and "_@" in text


def test_another_step_can_be_chosen(run: RunDir) -> None:
    assert "weights 0" in shown(run, step=1, count=1)
    with pytest.raises(StorageError, match="holds nothing of step 9; there are steps 1 to 2"):
        shown(run, step=9)


def test_a_prompt_is_followed_over_the_steps(run: RunDir) -> None:
    text = shown(run, prompt_id="gsm8k:1", count=2)
    assert re.search(r"^1 +2 +0 +0 0 *$", text, re.MULTILINE)
    assert re.search(r"^2 +2 +0 +0 none *$", text, re.MULTILINE)
    assert headings(text) == ["gsm8k:1, sample 0", "gsm8k:1, sample 1"]
    with pytest.raises(StorageError, match="no trajectory of prompt 'gsm8k:99'"):
        shown(run, prompt_id="gsm8k:99")


def test_the_middle_of_a_long_text_is_left_out(run: RunDir) -> None:
    write_lines(run.trained_file(3), [line_of(3, 0, 1.0, "a" * 500 + "b" * 500)])
    text = shown(run, characters=100)
    assert "a" * 50 + "\n[... 900 characters ...]\n" + "b" * 50 in text
    assert "a" * 500 + "b" * 500 in shown(run, characters=0)


def test_a_killed_run_is_told_from_a_running_one(run: RunDir) -> None:
    with RunDir.resume(run.root) as live:
        live.write_status(RunState.RUNNING, step=2)
        assert ": running, step 2" in shown(run, count=0)
    assert ": killed (process" in shown(run, count=0)


def test_a_run_that_has_not_made_a_step_has_nothing_to_show(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "new") as new:
        new.write_config("")
    assert shown(new).splitlines()[0].endswith("new: not started yet")


def test_what_cannot_be_shown_is_an_error(run: RunDir, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--sort: there is no order 'wurst'.*worst, best"):
        shown(run, sort="wurst")
    with pytest.raises(StorageError, match="holds no run"):
        view(tmp_path)


@given(st.text(st.characters(codec=None, exclude_categories=())))
@settings(max_examples=25, deadline=None)
def test_any_text_can_be_shown(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with RunDir.create(tmp_path_factory.mktemp("run")) as run:
        run.write_config("")
        line = line_of(1, 0, 1.0, text)
        line["prompt"] = line["prompt_id"] = text
        line["rewards"] = {text: 1.0}
        write_lines(run.trained_file(1), [line])
    output = shown(run)
    assert all(unicodedata.category(c)[0] != "C" for c in output if c != "\n")
    assert shown(run, prompt_id=text)


DAMAGES = [
    ("reward", '"good"'),
    ("reward", "[1]"),
    ("reward", "1" + "0" * 400),
    ("reward", "9" * 5000),
    ("reward", "1e999"),
    ("reward", "NaN"),
    ("unfiltered_reward", '"good"'),
    ("rewards", "[1]"),
    ("rewards", '{"correct": "yes"}'),
    ("advantages", '["a"]'),
    ("advantages", "[null, 1e999]"),
    ("advantages", "[1" + "0" * 400 + "]"),
    ("advantages", "null"),
    ("token_loss_mask", "null"),
    ("token_loss_mask", "[null]"),
    ("weight_versions", "[1]"),
    ("weight_versions", "[[1, 2]]"),
    ("weight_versions", '[["a", 1, 2]]'),
    ("response", "5"),
    ("prompt", "null"),
    ("prompt_id", "[]"),
    ("total_length", '"long"'),
    ("step", "null"),
    ("truncated", "1"),
    ("agent_ref", "[" * 200 + "]" * 200),
    ("agent_ref", "[" * 100_000),
]


@pytest.mark.parametrize(("field", "value"), DAMAGES, ids=lambda value: value[:20])
def test_damaged_trajectory_is_an_error_that_names_its_line(
    run: RunDir, field: str, value: str
) -> None:
    line = json.dumps({**line_of(2, 0, 0.5), field: "HERE"}).replace('"HERE"', value)
    with open(run.trained_file(2), "a") as file:
        file.write(line + "\n")
    # The rollouts of one prompt are found by its name, without reading the others.
    of_prompt = [] if field == "prompt_id" else [{"prompt_id": "gsm8k:0"}]
    for options in ({}, {"sort": "advantage"}, *of_prompt):
        with pytest.raises(StorageError, match=r"step_000002\.jsonl:5: "):
            shown(run, **options)


@pytest.mark.parametrize(
    "value", ["[" * 100_000, "9" * 400, "9" * 5000, '"a"', "[1]", "NaN", "1e999"]
)
def test_damaged_metric_is_an_error_that_names_its_line(run: RunDir, value: str) -> None:
    with open(run.metrics, "a") as file:
        file.write(f'{{"step": 3, "train/reward_mean": {value}}}\n')
    with pytest.raises(StorageError, match=r"metrics\.jsonl:3: "):
        shown(run)
