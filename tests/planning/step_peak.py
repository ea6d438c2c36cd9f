# SPDX-License-Identifier: Apache-2.0
"""One learner step in a process of its own: ``python -m tests.planning.step_peak FOLDER ...``.

Prints JSON: the memory that the step needed beyond what the process had before, and the estimate,
both in bytes. Behind the folder come rows, their length, tokens of a segment of a scan, overrides.
"""

from __future__ import annotations

import ctypes
import json
import re
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers.models.nemotron_h import modeling_nemotron_h

from rlrun.batch import Sample
from rlrun.config import load
from rlrun.derived import sampling_of
from rlrun.learner.learner import Learner
from rlrun.learner.scan import SCAN, SegmentedScan
from rlrun.planning.plan import layout_of, learner_memory
from rlrun.planning.shape import config_of, shape_of
from tests.factories import sample, trajectory

GIVES_BACK_FROM = 65536
"""Bytes of a block from which on glibc returns it to the system at once when it is freed, in the
environment MALLOC_MMAP_THRESHOLD_. Otherwise it keeps blocks of up to 32 MiB, which would be
measured although nothing holds them."""
M_MMAP_THRESHOLD = -3
"""What glibc's mallopt calls that."""


def peak() -> int:
    """The most memory that this process has had at once, in bytes."""
    # Not ru_maxrss, which a process inherits from the one that started it.
    status = Path("/proc/self/status").read_text()
    return int(re.findall(r"VmHWM:\s+(\d+) kB", status)[0]) * 1024


def samples_of(rows: int, length: int) -> list[Sample]:
    """As many of the longest trajectories, all but the first token trained."""
    rng = np.random.default_rng(0)
    made = []
    for index in range(rows):
        ids = rng.integers(3, 270, length).tolist()
        one = trajectory(ids[1:], before=ids[:1], logprobs=[-1.0] * (length - 1))
        made.append(sample(one, position=index, advantage=(-1.0) ** index))
    return made


def main(
    folder: str, rows: int, length: int, segment_tokens: int, overrides: list[str]
) -> dict[str, float]:
    """Measures and estimates."""
    torch.set_num_threads(1)
    scan = modeling_nemotron_h.__dict__[SCAN]
    setattr(modeling_nemotron_h, SCAN, SegmentedScan(scan, segment_tokens))
    config = load(
        [
            f"policy.model={folder}",
            "policy.tokenizer=rlrun:tiny",
            "data=addition",
            "generation.max_new_tokens=8",
            f"policy.max_total_sequence_length={length}",
            f"policy.train_micro_batch_tokens={rows * length}",
            *overrides,
        ]
    ).config
    model = config_of(config.policy)
    parts = learner_memory(config, model, shape_of(config.policy, model), layout_of(config, 0))
    samples = samples_of(rows, length)
    # Small blocks that the estimate left behind would be used again and hide a part of the step.
    ctypes.CDLL(None).malloc_trim(0)
    before = peak()
    device = torch.device("cpu")
    learner = Learner(config.policy, config.loss, sampling_of(config, training=True), device)
    for step in (1, 2):
        learner.update([samples], step)
    return {
        "measured": peak() - before,
        "estimated": sum(part.bytes for part in parts),
        **{part.name: part.bytes for part in parts},
    }


def send(found: Connection, *given: Any) -> None:
    """Sends what ``main`` finds in this process, which was forked and has not computed yet."""
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, GIVES_BACK_FROM)
    found.send(main(*given))


if __name__ == "__main__":
    rows, length, segment_tokens = map(int, sys.argv[2:5])
    found = main(sys.argv[1], rows, length, segment_tokens, sys.argv[5:])
    sys.stdout.write(json.dumps(found))
