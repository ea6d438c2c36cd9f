# SPDX-License-Identifier: Apache-2.0
"""Groups that wait to be trained survive a checkpoint as they are."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import StorageError
from rlrun.replay_buffer import ReplayBuffer
from rlrun.types import (
    Failure,
    FailureKind,
    Prompt,
    StopReason,
    Trajectory,
    TrajectoryGroup,
    VersionSpan,
)
from tests.factories import prompt, trajectory

FLOATS = st.floats(-(2.0**100), 0, allow_nan=False, width=32)


@st.composite
def trajectories(draw: st.DrawFn) -> Trajectory:
    sampled = draw(st.lists(st.integers(0, 10**6), max_size=6))
    logprobs = draw(st.lists(FLOATS, min_size=len(sampled), max_size=len(sampled)))
    failed = draw(st.booleans())
    made = trajectory(
        sampled,
        logprobs=logprobs,
        reward=None if failed else draw(st.floats(allow_nan=False, allow_infinity=False)),
        version=draw(st.integers(0, 100)),
        stop_reason=draw(st.sampled_from(StopReason)),
        failure=Failure(FailureKind.TIMEOUT, draw(st.text())) if failed else None,
    )
    return replace(made, extracted=draw(st.none() | st.text()))


def prompt_at(position: int) -> Prompt:
    return prompt(position)


@given(st.lists(st.lists(trajectories(), min_size=1, max_size=3), max_size=4))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, groups: list[list[Trajectory]]
) -> None:
    path = tmp_path_factory.mktemp("buffer") / "buffer.jsonl"
    buffer, restored = ReplayBuffer(), ReplayBuffer()
    made = {2 * i: TrajectoryGroup(prompt(2 * i), tuple(g)) for i, g in enumerate(groups)}
    for group in made.values():
        buffer.put(group)
    buffer.write(path, made)
    restored.read(path, made, prompt_at)
    assert restored.take(list(made)) == list(made.values())
    assert len(restored) == 0


def test_only_the_groups_that_are_asked_for_are_written(tmp_path: Path) -> None:
    buffer, restored = ReplayBuffer(), ReplayBuffer()
    for position in (1, 2, 3):
        buffer.put(TrajectoryGroup(prompt(position), (trajectory(),)))
    buffer.write(tmp_path / "b", [3, 1])
    restored.read(tmp_path / "b", [1, 3], prompt_at)
    assert not restored.discard(2)
    assert restored.discard(1) and not restored.discard(1)


@pytest.mark.parametrize(
    ("text", "positions"),
    [
        ('{"position": 1}', [1]),
        ('{"position": 1, "trajectories": [{}]}', [1]),
        ("[]", [1]),
        ("", [1]),
    ],
)
def test_a_damaged_file_is_an_error(tmp_path: Path, text: str, positions: list[int]) -> None:
    (tmp_path / "b").write_text(text)
    with pytest.raises(StorageError, match="b"):
        ReplayBuffer().read(tmp_path / "b", positions, prompt_at)


def test_spans_and_masks_keep_their_types(tmp_path: Path) -> None:
    buffer, restored = ReplayBuffer(), ReplayBuffer()
    buffer.put(TrajectoryGroup(prompt(0), (trajectory(version=4),)))
    buffer.write(tmp_path / "b", [0])
    restored.read(tmp_path / "b", [0], prompt_at)
    ((found,),) = [group.trajectories for group in restored.take([0])]
    assert found.weight_versions == (VersionSpan(4, 3, 5),)
    assert found.stop_reason is StopReason.STOP
