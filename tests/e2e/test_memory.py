# SPDX-License-Identifier: Apache-2.0
"""A long run needs no more memory than a short one."""

from __future__ import annotations

import gc
import os
import resource
import tracemalloc
from multiprocessing.connection import Connection
from pathlib import Path

import pytest

from tests.e2e.forked import FORKS, start_server

STEPS, SETTLED = 50, 15
"""All steps, and those after which caches are full and imports are done."""

PYTHON_LIMIT = 160 * 2**10
PROCESS_LIMIT = 12 * 2**20
"""What 35 steps may add, in bytes. Keeping the rollouts would add about 400 KiB of Python objects,
keeping the weights of each checkpoint 45 MiB."""

OVERRIDES = (
    "+recipe=quickstart",
    "grpo.num_prompts_per_step=2",
    "grpo.num_generations_per_prompt=2",
    f"grpo.max_num_steps={STEPS}",
    "grpo.val_period=1",
    "grpo.max_val_samples=4",
    "generation.max_new_tokens=8",
    "checkpointing.save_period=1",
    "checkpointing.keep_top_k=1",
    "num_threads=1",
)


def measure(run_dir: Path, sender: Connection) -> None:
    """Trains in a process of its own; sends what is in use after each step."""
    from rlrun.assemble import train
    from rlrun.config import load
    from rlrun.grpo.trainer import Trainer

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    finish_step = Trainer.finish_step

    async def measured(trainer: Trainer) -> None:
        await finish_step(trainer)
        gc.collect()
        sender.send((tracemalloc.get_traced_memory()[0], resident_bytes()))

    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(Trainer, "finish_step", measured)
    tracemalloc.start()
    train(load([*OVERRIDES, f"run_dir={run_dir}"]))
    sender.close()


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


@pytest.fixture(scope="module")
def in_use(tmp_path_factory: pytest.TempPathFactory) -> list[tuple[int, int]]:
    """(Python objects, whole process) in bytes after each step."""
    start_server()
    receiver, sender = FORKS.Pipe(duplex=False)
    run_dir = tmp_path_factory.mktemp("memory") / "run"
    child = FORKS.Process(target=measure, args=(run_dir, sender))
    child.start()
    sender.close()
    found = []
    try:
        while True:
            found.append(receiver.recv())
    except EOFError:
        child.join()
    assert child.exitcode == 0
    assert len(list((run_dir / "validation").iterdir())) == STEPS + 1
    return found


def test_fifty_steps_validations_and_checkpoints_leave_no_objects_behind(
    in_use: list[tuple[int, int]],
) -> None:
    assert len(in_use) == STEPS
    assert in_use[-1][0] - in_use[SETTLED][0] < PYTHON_LIMIT


def test_fifty_steps_validations_and_checkpoints_leave_no_tensors_behind(
    in_use: list[tuple[int, int]],
) -> None:
    assert in_use[-1][1] - in_use[SETTLED][1] < PROCESS_LIMIT
