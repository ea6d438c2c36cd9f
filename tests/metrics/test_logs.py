# SPDX-License-Identifier: Apache-2.0
"""metrics.jsonl and TensorBoard: whole lines, strict JSON, nothing dropped in silence."""

from __future__ import annotations

import gc
import json
import math
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlrun.checkpoint.store import CheckpointStore
from rlrun.config.schema import Checkpointing, Layout, Logging
from rlrun.errors import StorageError
from rlrun.metrics.logs import MetricsLogger, as_number, read_metrics
from rlrun.metrics.registry import UndeclaredMetric
from rlrun.run_dir.directory import RunDir
from tests.factories import config


def settings_of(tensorboard: bool = False) -> Logging:
    return replace(config().logging, tensorboard=tensorboard)


def logger_of(root: Path, tensorboard: bool = False) -> MetricsLogger:
    return MetricsLogger(RunDir(root), settings_of(tensorboard), clock=lambda: 12.5)


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(folder))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def strict(line: str) -> Any:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    return json.loads(line, parse_constant=refuse)


def test_lines_are_as_documented(tmp_path: Path) -> None:
    log = logger_of(tmp_path)
    log.log(0, {"validation/accuracy": 0.25})
    log.log(1, {"train/loss": np.float32(0.1), "tokens/trained": np.int64(3), "train/lr": 1e-6})
    log.close()
    assert (tmp_path / "metrics.jsonl").read_text() == (
        '{"step": 0, "time": 12.5, "validation/accuracy": 0.25}\n'
        '{"step": 1, "time": 12.5, "train/loss": 0.10000000149011612, "tokens/trained": 3, '
        '"train/lr": 1e-06}\n'
    )


def test_values_that_are_no_number_are_left_out_with_one_notice_each(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    values = {
        "reward/a": 1.0,
        "reward/b": "x",
        "reward/c": None,
        "reward/d": [1, 2],
        "reward/e": {"k": 1},
        "reward/f": torch.tensor([1.0, 2.0]),
        "reward/g": np.float32(2),
        "reward/h": torch.tensor([3.0]),
    }
    log = logger_of(tmp_path, tensorboard=True)
    for step in (1, 2):
        log.log(step, values)
    log.close()
    line = read_metrics(tmp_path / "metrics.jsonl")[1]
    assert line == {"step": 2, "time": 12.5, "reward/a": 1.0, "reward/g": 2.0, "reward/h": 3.0}
    assert [m.split()[1] for m in caplog.messages] == [f"reward/{n}" for n in "bcdef"]
    assert {tag: points[1][1] for tag, points in scalars(tmp_path / "tensorboard").items()} == {
        "reward/a": 1.0,
        "reward/g": 2.0,
        "reward/h": 3.0,
    }


def test_what_is_not_finite_is_null_with_one_notice(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = logger_of(tmp_path, tensorboard=True)
    for step in (1, 2):
        log.log(step, {"train/loss": math.nan, "train/grad_norm": torch.tensor(math.inf)})
    log.close()
    for line in (tmp_path / "metrics.jsonl").read_text().splitlines():
        values = strict(line)
        assert values["train/loss"] is None and values["train/grad_norm"] is None
    assert len(caplog.messages) == 2
    assert scalars(tmp_path / "tensorboard") == {}


@given(
    st.dictionaries(
        st.sampled_from(["reward/a", "train/loss", "age/max"]),
        st.one_of(
            st.floats(),
            st.integers(),
            st.booleans(),
            st.text(),
            st.none(),
            st.floats(width=32).map(np.float32),
            st.complex_numbers(),
            st.binary(),
        ),
    )
)
@settings(max_examples=60, deadline=None)
def test_any_value_gives_a_strict_line(
    tmp_path_factory: pytest.TempPathFactory, values: dict[str, object]
) -> None:
    root = tmp_path_factory.mktemp("run")
    log = logger_of(root, tensorboard=True)
    log.log(1, values)
    log.close()
    (line,) = (root / "metrics.jsonl").read_text().splitlines()
    assert set(strict(line)) <= {"step", "time", *values}


def test_numbers_of_any_library_are_numbers() -> None:
    assert as_number(np.int64(3)) == 3 and isinstance(as_number(np.int64(3)), int)
    assert as_number(torch.tensor([[2.5]], dtype=torch.bfloat16)) == 2.5
    assert as_number(np.array([7])) == 7
    assert as_number(np.bool_(True)) == 1
    assert as_number(10**400) == math.inf and as_number(-(10**400)) == -math.inf
    for value in (np.array([1, 2]), torch.tensor([]), 1j, "1", np.array("1"), object()):
        assert as_number(value) is None


def test_undeclared_names_raise_and_leave_no_line(tmp_path: Path) -> None:
    log = logger_of(tmp_path)
    with pytest.raises(UndeclaredMetric, match="train/made_up"):
        log.log(1, {"train/made_up": 1.0})
    log.close()
    assert (tmp_path / "metrics.jsonl").read_text() == ""


def test_steps_ascend_over_a_resume(tmp_path: Path) -> None:
    log = logger_of(tmp_path)
    log.log(1, {})
    log.log(3, {})
    log.close()
    log = logger_of(tmp_path)
    assert log.last_step == 3
    with pytest.raises(ValueError, match="step 3 is logged after step 3"):
        log.log(3, {})
    log.log(4, {"train/loss": 1.0})
    log.sync()
    log.close()
    assert [line["step"] for line in read_metrics(tmp_path / "metrics.jsonl")] == [1, 3, 4]


def test_a_torn_line_is_refused_by_the_writer_and_passed_over_by_readers(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n{"step": 2')
    assert read_metrics(path) == [{"step": 1}]
    with pytest.raises(StorageError, match=r"metrics.jsonl:2: is a torn line.*rlrun resume"):
        logger_of(tmp_path)


@pytest.mark.parametrize("damage", ["{]", "[1]", '{"time": 1}'])
def test_a_damaged_line_is_named(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text(f'{{"step": 1}}\n{damage}\n{{"step": 3}}\n')
    with pytest.raises(StorageError, match="metrics.jsonl:2: "):
        read_metrics(path)


def test_a_full_disk_is_a_storage_error_and_leaves_whole_lines(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from rlrun.config import load
from rlrun.errors import StorageError
from rlrun.metrics.logs import MetricsLogger
from rlrun.run_dir.directory import RunDir
settings = load(["+recipe=quickstart", "logging.tensorboard=false"]).config.logging
log = MetricsLogger(RunDir(Path(sys.argv[1])), settings)
resource.setrlimit(resource.RLIMIT_FSIZE, (250, 250))
try:
    for step in range(100):
        log.log(step, {"train/loss": 0.5})
except StorageError as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True
    )
    assert "metrics.jsonl: cannot write: File too large" in done.stderr
    text = (tmp_path / "metrics.jsonl").read_text()
    assert text.endswith("\n") and 2 <= text.count("\n") <= 6


def test_tensorboard_forgets_steps_that_a_resume_repeats(tmp_path: Path) -> None:
    log = logger_of(tmp_path, tensorboard=True)
    for step in range(1, 6):
        log.log(step, {"train/loss": 1.0})
    log.close()
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "metrics.jsonl").write_text("".join(lines[:3]))
    log = logger_of(tmp_path, tensorboard=True)
    log.log(4, {"train/loss": 2.0})
    log.close()
    assert len(list((tmp_path / "tensorboard").iterdir())) == 2
    points = scalars(tmp_path / "tensorboard")["train/loss"]
    assert points == [(1, 1.0), (2, 1.0), (3, 1.0), (4, 2.0)]


def test_a_failing_tensorboard_is_switched_off_and_the_record_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorboard").write_text("a file in the way")
    log = logger_of(tmp_path, tensorboard=True)
    log.log(1, {"train/loss": 1.0})
    log.log(2, {"train/loss": 1.0})
    log.close()
    assert len(read_metrics(tmp_path / "metrics.jsonl")) == 2
    assert [m.startswith("TensorBoard is switched off") for m in caplog.messages] == [True]


def test_the_logger_loads_no_torch() -> None:
    program = (
        "import sys, rlrun.metrics.logs; from tensorboard.compat.proto import event_pb2; "
        "from tensorboard.summary.writer import record_writer; print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_many_logs_and_saves_need_no_more_memory(tmp_path: Path) -> None:
    settings = Checkpointing(
        enabled=True,
        layout=Layout.WHOLE,
        save_period=1,
        keep_top_k=2,
        metric="validation/accuracy",
        higher_is_better=True,
        checkpoint_must_save_by=None,
    )
    store = CheckpointStore(tmp_path / "checkpoints", settings)
    log = logger_of(tmp_path, tensorboard=True)
    content = bytes(100_000)

    def write(folder: Path) -> None:
        (folder / "w").write_bytes(content)

    def step(number: int) -> None:
        log.log(number, {"train/loss": 0.5, "validation/accuracy": 0.1, "reward/a": math.nan})
        store.save(number, write, {"validation/accuracy": 0.1})

    for number in range(10):
        step(number)
    gc.collect()
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(10, 60):
        step(number)
    gc.collect()
    grown = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    log.close()
    assert grown < 10_000
    assert len(list((tmp_path / "checkpoints").iterdir())) <= 3
