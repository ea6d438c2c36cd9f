# SPDX-License-Identifier: Apache-2.0
"""From a batch to the file of its step."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rlrun.batch import Batch, Masked, Sample
from rlrun.config.schema import Logging
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.recorder import Recorder
from rlrun.run_dir.records import read_trained, read_validation
from rlrun.run_dir.retention import removed_up_to
from rlrun.types import Prompt, Row, StopReason, Trajectory, TrajectoryGroup, VersionSpan
from tests.factories import config

ROW = Row("d:0", (), "4", {"agent_ref": {"name": "math"}}, "d:1")
PROMPT = Prompt(position=9, epoch=0, row=ROW, token_ids=(5,))


def sample_of(index: int, masked: Masked | None) -> Sample:
    trajectory = Trajectory(
        sample_index=index,
        token_ids=(5, 7, 8, 9),
        loss_mask=(False, True, False, True),
        generation_logprobs=(0.0, -0.5, 0.0, -0.75),
        weight_versions=(VersionSpan(0, 1, 4),),
        input_length=1,
        response="x",
        reward=1.0,
        rewards={},
        extracted=None,
        stop_reason=StopReason.STOP,
    )
    return Sample(
        prompt=PROMPT,
        trajectory=trajectory,
        reward=0.5,
        masked=masked,
        generation_logprobs=np.array([-0.5, -0.75], dtype=np.float32),
        prev_logprobs=np.array([-0.1, -0.2], dtype=np.float32),
        weights=np.ones(2, dtype=np.float32),
        advantage=0.0 if masked else -1.25,
    )


def record(root: Path, settings: Logging) -> RunDir:
    samples = (sample_of(0, None), sample_of(1, Masked.OVERLONG))
    group = TrajectoryGroup(PROMPT, tuple(sample.trajectory for sample in samples))
    run = RunDir.create(root)
    recorder = Recorder(run, settings, lambda one: f"text of {one.input_length} tokens")
    recorder.trained(Batch(3, (group,), samples), {9: 4})
    recorder.validation(2, [group])
    run.close()
    return run


def test_values_of_sampled_tokens_lie_at_their_places(tmp_path: Path) -> None:
    run = record(tmp_path, config().logging)
    first, second = read_trained(run.trained_file(3))
    assert first["advantages"] == [0, -1.25, 0, -1.25]
    prev = [0, float(np.float32(-0.1)), 0, float(np.float32(-0.2))]
    assert first["prev_logprobs"] == prev and second["prev_logprobs"] == prev
    assert (first["sample_loss_mask"], second["sample_loss_mask"]) == (1, 0)
    assert second["advantages"] == [0, 0, 0, 0]
    assert (first["reward"], first["unfiltered_reward"], first["target_step"]) == (0.5, 1.0, 4)
    assert first["agent_ref"] == {"name": "math"} and first["prompt"] == "text of 1 tokens"
    assert [line["sample_index"] for line in read_validation(run.validation_file(2))] == [0, 1]


def test_files_of_the_newest_steps_alone_are_kept(tmp_path: Path) -> None:
    run = RunDir.create(tmp_path)
    recorder = Recorder(run, config("logging.keep_trained_steps=2").logging, lambda one: "")
    samples = (sample_of(0, None),)
    group = TrajectoryGroup(PROMPT, (samples[0].trajectory,))
    for step in (1, 2, 3, 4, 3):
        recorder.trained(Batch(step, (group,), samples))
    assert run.trained_steps() == [3, 4] and removed_up_to(run) == 2
    run.close()


def test_nothing_is_written_where_the_settings_say_so(tmp_path: Path) -> None:
    run = record(tmp_path, config("logging.trained=false", "logging.validation_rows=false").logging)
    assert run.trained_steps() == [] and run.validation_steps() == []
