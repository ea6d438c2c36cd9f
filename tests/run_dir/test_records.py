# SPDX-License-Identifier: Apache-2.0
"""What was trained and validated, line by line."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlrun.errors import StorageError
from rlrun.run_dir.records import (
    TrainedLine,
    read_trained,
    read_validation,
    trained_line,
    validation_line,
    write_lines,
)
from rlrun.types import Failure, FailureKind, Prompt, Row, StopReason, Trajectory, VersionSpan

PROMPT = Prompt(
    position=7,
    epoch=1,
    row=Row("gsm8k:3", ({"role": "user", "content": "2+2?"},), "4", {}, "gsm8k.jsonl:4"),
    token_ids=(5, 6),
)

TRAJECTORY = Trajectory(
    sample_index=2,
    token_ids=(5, 6, 8, 9, 1),
    loss_mask=(False, False, True, False, True),
    generation_logprobs=(0.0, 0.0, -0.5, 0.0, -0.25),
    weight_versions=(VersionSpan(3, 2, 3), VersionSpan(4, 4, 5)),
    input_length=2,
    response="The answer is 4",
    reward=1.0,
    rewards={"correct": 1.0, "format": 0.0},
    extracted="4",
    stop_reason=StopReason.LENGTH,
)


def line_of(
    trajectory: Trajectory = TRAJECTORY, advantages: tuple[float, ...] = (0, 0, 0.5, 0, 0.5)
) -> TrainedLine:
    return trained_line(
        step=5,
        target_step=6,
        prompt=PROMPT,
        trajectory=trajectory,
        advantages=advantages,
        prev_logprobs=(0, 0, -0.6, 0, -0.3),
        sample_loss_mask=True,
        reward=0.75,
        agent_ref={"name": "math"},
        prompt_text="user: 2+2?",
    )


def test_a_trained_line_has_exactly_the_public_fields(tmp_path: Path) -> None:
    write_lines(tmp_path / "t", [line_of()])
    assert json.loads((tmp_path / "t").read_text()) == {
        "prompt_id": "gsm8k:3",
        "group_id": "1/gsm8k:3",
        "sample_index": 2,
        "step": 5,
        "target_step": 6,
        "agent_ref": {"name": "math"},
        "prompt": "user: 2+2?",
        "response": "The answer is 4",
        "token_ids": [5, 6, 8, 9, 1],
        "token_loss_mask": [0, 0, 1, 0, 1],
        "sample_loss_mask": 1,
        "advantages": [0, 0, 0.5, 0, 0.5],
        "generation_logprobs": [0.0, 0.0, -0.5, 0.0, -0.25],
        "prev_logprobs": [0, 0, -0.6, 0, -0.3],
        "weight_versions": [[3, 2, 3], [4, 4, 5]],
        "reward": 0.75,
        "rewards": {"correct": 1.0, "format": 0.0},
        "unfiltered_reward": 1.0,
        "input_length": 2,
        "total_length": 5,
        "truncated": True,
        "stop_reason": "length",
    }


def test_a_validation_line_has_exactly_the_documented_fields(tmp_path: Path) -> None:
    write_lines(tmp_path / "v", [validation_line(10, PROMPT, TRAJECTORY, "user: 2+2?")])
    (line,) = read_validation(tmp_path / "v")
    assert line == {
        "step": 10,
        "prompt_id": "gsm8k:3",
        "sample_index": 2,
        "prompt": "user: 2+2?",
        "response": "The answer is 4",
        "reward": 1.0,
        "rewards": {"correct": 1.0, "format": 0.0},
        "extracted": "4",
        "stop_reason": "length",
        "truncated": True,
        "answer": "4",
    }


def test_a_failure_has_no_reward(tmp_path: Path) -> None:
    failed = replace(
        TRAJECTORY,
        reward=None,
        rewards={},
        failure=Failure(FailureKind.TIMEOUT, "late"),
        stop_reason=StopReason.ERROR,
    )
    line = validation_line(1, PROMPT, failed, "")
    assert line["reward"] is None and line["stop_reason"] == "error"
    assert line_of(failed)["unfiltered_reward"] is None


def test_lists_of_another_length_are_refused() -> None:
    with pytest.raises(ValueError, match="advantages has 2 entries for 5 tokens"):
        line_of(advantages=(0.0, 0.5))


def test_what_is_not_finite_is_null(tmp_path: Path) -> None:
    write_lines(tmp_path / "t", [line_of(advantages=(0, 0, math.nan, 0, -math.inf))])
    (line,) = read_trained(tmp_path / "t")
    assert line["advantages"] == [0, 0, None, 0, None]


@given(
    st.text(st.characters(codec=None, exclude_categories=())),
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=5, max_size=5),
)
@settings(max_examples=60, deadline=None)
def test_texts_and_float32_numbers_come_back_as_they_were(
    tmp_path_factory: pytest.TempPathFactory, text: str, numbers: list[float]
) -> None:
    path = tmp_path_factory.mktemp("r") / "t"
    values = np.array(numbers, dtype=np.float32)
    line = line_of(replace(TRAJECTORY, response=text), tuple(values.tolist()))
    write_lines(path, [line, line])
    assert path.read_bytes().count(b"\n") == 2
    for read in read_trained(path):
        assert read == line
        assert np.array_equal(np.array(read["advantages"], dtype=np.float32), values)


@given(st.text(st.characters(codec=None, exclude_categories=())))
@settings(max_examples=60, deadline=None)
def test_the_lines_of_a_prompt_are_found_whatever_it_is_called(
    tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    path = tmp_path_factory.mktemp("r") / "t"
    other, own = line_of(), line_of()
    own["prompt_id"], other["response"] = name, name
    other["prompt_id"] = name + "x"
    write_lines(path, [other, own, other])
    assert list(read_trained(path, name)) == [own]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"step": 1', "is no JSON"),
        ("[]", "is no JSON object"),
        ("{}", "lacks advantages,"),
        ('{"step": 1, "step": 2}', "is not as it was written: field 'step' occurs more than once"),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(tmp_path: Path, text: str, what: str) -> None:
    path = tmp_path / "step_000001.jsonl"
    write_lines(path, [line_of()])
    with open(path, "a") as file:
        file.write(text + "\n")
    with pytest.raises(StorageError, match=re.escape(f"{path}:2: {what}")):
        list(read_trained(path))


def test_a_failing_writer_leaves_no_file(tmp_path: Path) -> None:
    def lines() -> object:
        yield line_of()
        raise RuntimeError

    with pytest.raises(RuntimeError):
        write_lines(tmp_path / "t", lines())  # type: ignore[arg-type]  # a generator of lines
    assert not list(tmp_path.iterdir())
