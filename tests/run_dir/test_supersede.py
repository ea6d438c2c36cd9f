# SPDX-License-Identifier: Apache-2.0
"""A resume moves away what lies beyond its checkpoint, and loses none of it, killed or not."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from rlrun.run_dir.directory import RunDir

STEPS = 4
TORN = b'{"step": 5, "ti'


def make_run(root: Path) -> None:
    with RunDir.create(root) as run:
        run.write_config("a: 1\n")
        for step in range(1, STEPS + 1):
            run.trained_file(step).write_text(f"trained {step}\n")
            (run.checkpoints / f"step_{step:06d}").mkdir()
            (run.checkpoints / f"step_{step:06d}" / "weights").write_text(f"weights {step}")
        run.validation_file(4).write_text("validation 4\n")
        run.metrics.write_bytes(b"".join(metrics_line(s) for s in range(STEPS + 1)) + TORN)


def metrics_line(step: int) -> bytes:
    return json.dumps({"step": step, "time": 0.5 * step}).encode() + b"\n"


def pieces(root: Path) -> Counter[bytes]:
    """Every line of every file of the run, wherever it lies."""
    found: Counter[bytes] = Counter()
    for path in root.rglob("*"):
        if path.is_file() and path.name != "run.lock":
            found.update(path.read_bytes().splitlines(keepends=True))
    return found


def assert_superseded(root: Path, after: int) -> None:
    run = RunDir.read(root)
    assert run.metrics.read_bytes() == b"".join(metrics_line(s) for s in range(after + 1))
    assert run.trained_steps() == list(range(1, after + 1))
    assert run.validation_steps() == ([4] if after >= 4 else [])
    assert len(list(run.checkpoints.iterdir())) == after
    assert not list(root.rglob("*.moving")) and not list(root.rglob("*.tmp"))


def test_what_lies_beyond_the_checkpoint_is_in_one_folder(tmp_path: Path) -> None:
    make_run(tmp_path)
    run = RunDir.resume(tmp_path)
    folder = run.supersede(2)
    assert folder == run.superseded / "0001_after_step_000002"
    assert_superseded(tmp_path, 2)
    names = sorted(p.relative_to(folder).as_posix() for p in folder.rglob("*") if p.is_file())
    assert names == [
        "checkpoints/step_000003/weights",
        "checkpoints/step_000004/weights",
        "metrics.jsonl",
        "trained/step_000003.jsonl",
        "trained/step_000004.jsonl",
        "validation/step_000004.jsonl",
    ]
    assert (folder / "metrics.jsonl").read_bytes() == metrics_line(3) + metrics_line(4) + TORN
    assert run.supersede(2) is None
    run.close()


def test_a_torn_last_line_alone_is_moved(tmp_path: Path) -> None:
    make_run(tmp_path)
    with RunDir.resume(tmp_path) as run:
        folder = run.supersede(4)
        assert folder is not None
        assert [p.name for p in folder.iterdir()] == ["metrics.jsonl"]
        assert (folder / "metrics.jsonl").read_bytes() == TORN


def test_a_start_without_a_checkpoint_moves_everything(tmp_path: Path) -> None:
    make_run(tmp_path)
    with RunDir.resume(tmp_path) as run:
        first = run.supersede(-1)
        assert first == run.superseded / "0001_from_the_start"
        assert run.metrics.read_bytes() == b""
        assert (first / "metrics.jsonl").read_bytes().startswith(metrics_line(0))
        run.metrics.write_bytes(metrics_line(0))
        assert run.supersede(-1) == run.superseded / "0002_from_the_start"


def test_later_resumes_get_folders_of_their_own(tmp_path: Path) -> None:
    make_run(tmp_path)
    with RunDir.resume(tmp_path) as run:
        run.supersede(3)
        run.trained_file(4).write_text("trained 4 again\n")
        run.supersede(3)
        run.supersede(1)
        assert sorted(p.name for p in run.superseded.iterdir()) == [
            "0001_after_step_000003",
            "0002_after_step_000003",
            "0003_after_step_000001",
        ]
        assert b"trained 4 again\n" in pieces(tmp_path)


def test_a_run_without_any_file_has_nothing_to_move(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        assert run.supersede(-1) is None
        assert not run.superseded.exists()


def killed_at(operation: int, action: Callable[[], object]) -> bool:
    """Runs the action in a child that ends abruptly before its n-th change of the disk.

    Returns:
        Whether it got that far.
    """
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    done = 0

    def counted(function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object, **named: object) -> object:
            nonlocal done
            done += 1
            if done == operation:
                os._exit(9)
            return function(*arguments, **named)

        return call

    for name in ("rename", "replace", "truncate", "mkdir", "fsync", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    action()
    os._exit(0)


@pytest.mark.parametrize("second", [2, 1])
def test_killed_anywhere_and_called_again_it_ends_right_and_loses_nothing(
    tmp_path: Path, second: int
) -> None:
    operation, reached = 0, True
    while reached:
        operation += 1
        root = tmp_path / str(operation)
        make_run(root)
        before = pieces(root)
        reached = killed_at(operation, lambda root=root: RunDir.read(root).supersede(2))  # type: ignore[misc]  # bound now
        # Killed once more on the second attempt, at a place that moves along.
        killed_at(1 + operation % 7, lambda root=root: RunDir.read(root).supersede(second))  # type: ignore[misc]  # bound now
        with RunDir.resume(root) as run:
            run.supersede(second)
        assert_superseded(root, second)
        after = pieces(root)
        assert not before - after, f"lost when killed at operation {operation}"
    assert operation > 15


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "lacks the steps 1 to 3"),
        (metrics_line(0) + metrics_line(1), "lacks the steps 2 to 3"),
        (metrics_line(0) + b"[" * 100_000 + b"\n" + metrics_line(3), "lacks the steps 1 to 3"),
        (b"".join(map(metrics_line, range(5))), None),
    ],
)
def test_metrics_that_end_before_the_checkpoint_are_warned_about(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, content: bytes | None, told: str | None
) -> None:
    make_run(tmp_path)
    with RunDir.resume(tmp_path) as run:
        if content is None:
            run.metrics.unlink()
        else:
            run.metrics.write_bytes(content)
        run.supersede(3)
    if told is None:
        assert "lacks" not in caplog.text
    else:
        assert told in caplog.text


def test_start_without_a_checkpoint_misses_no_metrics(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_run(tmp_path)
    with RunDir.resume(tmp_path) as run:
        run.metrics.unlink()
        run.supersede(-1)
    assert "lacks" not in caplog.text
