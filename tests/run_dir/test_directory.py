# SPDX-License-Identifier: Apache-2.0
"""The run directory: who may start, resume and look at a run."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.errors import StorageError
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.status import RunState

HOLD = """
import os, sys, time
from pathlib import Path
from rlrun.run_dir.directory import RunDir
run = RunDir.resume(Path(sys.argv[1]))
if sys.argv[2] == "fork" and os.fork() == 0:
    print("child", os.getpid(), flush=True)
    time.sleep(600)
elif sys.argv[2] != "fork":
    print("ready", flush=True)
time.sleep(600)
"""


def started(root: Path) -> None:
    with RunDir.create(root) as run:
        run.write_config("a: 1\n")


def hold(root: Path, mode: str) -> subprocess.Popen[str]:
    child = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(root), mode], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    return child


def test_create_makes_parents_and_folders(tmp_path: Path) -> None:
    with RunDir.create(tmp_path / "a" / "b") as run:
        assert {p.name for p in run.root.iterdir() if p.is_dir()} == {
            "trained",
            "validation",
            "checkpoints",
        }


def test_a_folder_with_a_run_is_refused_and_resume_is_named(tmp_path: Path) -> None:
    started(tmp_path / "run")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(StorageError, match=f"rlrun resume {tmp_path}/run"):
        RunDir.create(tmp_path / "run")
    assert sorted(tmp_path.rglob("*")) == before


def test_a_foreign_folder_is_refused_and_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(StorageError, match=r"not empty .*'thesis.tex'"):
        RunDir.create(tmp_path)
    assert os.listdir(tmp_path) == ["thesis.tex"]


def test_an_empty_folder_and_a_start_that_was_killed_at_once_are_accepted(tmp_path: Path) -> None:
    RunDir.create(tmp_path).close()
    (tmp_path / ".config.yaml.tmp").write_text("half")
    RunDir.create(tmp_path).close()


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="cannot make the run directory"):
        RunDir.create(tmp_path / "file" / "run")
    with pytest.raises(StorageError, match="cannot make the run directory"):
        RunDir.create(tmp_path / "file")
    with pytest.raises(StorageError, match="cannot make the run directory"):
        RunDir.create(Path("/proc/rlrun-test"))


def test_resume_and_read_need_a_run(tmp_path: Path) -> None:
    for opened in (RunDir.resume, RunDir.read):
        with pytest.raises(StorageError, match="holds no run"):
            opened(tmp_path)
        with pytest.raises(StorageError, match="is not a folder"):
            opened(tmp_path / "missing")


def test_a_second_trainer_in_this_process_is_refused(tmp_path: Path) -> None:
    started(tmp_path)
    with RunDir.resume(tmp_path):
        with pytest.raises(StorageError, match=f"in use by process {os.getpid()} on "):
            RunDir.resume(tmp_path)
        assert RunDir.read(tmp_path).in_use()
    assert not RunDir.read(tmp_path).in_use()
    RunDir.resume(tmp_path).close()


def test_another_process_is_refused_with_its_pid_until_it_is_killed(tmp_path: Path) -> None:
    started(tmp_path)
    child = hold(tmp_path, "alone")
    assert child.stdout is not None
    child.stdout.readline()
    with pytest.raises(StorageError, match=f"in use by process {child.pid} on "):
        RunDir.resume(tmp_path)
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    RunDir.resume(tmp_path).close()


def test_a_forked_child_does_not_hold_the_lock_on(tmp_path: Path) -> None:
    started(tmp_path)
    parent = hold(tmp_path, "fork")
    assert parent.stdout is not None
    orphan = int(parent.stdout.readline().split()[1])
    try:
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        os.kill(orphan, 0)
        RunDir.resume(tmp_path).close()
    finally:
        os.kill(orphan, signal.SIGKILL)
        parent.stdout.close()


def test_resume_removes_half_written_files(tmp_path: Path) -> None:
    started(tmp_path)
    for name in ("trained/.step_000002.jsonl.tmp", ".status.json.tmp"):
        (tmp_path / name).write_text("half")
    RunDir.resume(tmp_path).close()
    assert not list(tmp_path.rglob("*.tmp"))


def test_status_says_what_was_written(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        assert run.read_status() is None
        run.write_status(RunState.TIME_LIMIT, step=7, reason="saved in time", exit_code=0)
        status = run.read_status()
        assert status is not None
        assert (status.state, status.step, status.exit_code) == (RunState.TIME_LIMIT, 7, 0)
        raw = json.loads(run.status.read_text())
        assert raw["state"] == "time_limit" and raw["pid"] == os.getpid()
        run.status.write_text('{"state": "napping"}')
        with pytest.raises(StorageError, match=r"status.json: is not a status"):
            run.read_status()


def test_a_changed_config_keeps_the_old_one(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        for text in ("a: 1\n", "a: 1\n", "a: 2\n", "a: 3\n"):
            run.write_config(text)
        assert run.config.read_text() == "a: 3\n"
        kept = {p.name: p.read_text() for p in run.superseded.iterdir()}
        assert kept == {"config.yaml": "a: 1\n", "config.yaml.2": "a: 2\n"}


def test_steps_are_listed_by_number_and_other_names_are_ignored(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        os.mkfifo(run.trained / "step_000012.jsonl")
        for name in ("step_000010.jsonl", "step_9.jsonl", ".step_000011.jsonl.tmp", "notes.txt"):
            (run.trained / name).write_text("")
        assert run.trained_steps() == [9, 10]
        assert run.validation_steps() == []
        assert run.trained_file(10).exists()


def test_log_holds_what_loggers_say_until_the_run_is_closed(tmp_path: Path) -> None:
    logger = logging.getLogger("rlrun.test")
    with RunDir.create(tmp_path) as run:
        run.open_log()
        logger.info("a step with \udce9")
    logger.info("too late")
    text = run.log.read_text()
    assert "INFO rlrun.test: a step with \\udce9" in text
    assert "too late" not in text


def test_a_long_log_goes_on_in_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rlrun.run_dir.log_file.MAX_BYTES", 1000)
    logger = logging.getLogger("rlrun.test")
    with RunDir.create(tmp_path) as run:
        run.open_log()
        for number in range(100):
            logger.info("step %d", number)
    files = sorted(path.name for path in tmp_path.glob("log.txt*"))
    assert files == ["log.txt", "log.txt.1"]
    assert all((tmp_path / name).stat().st_size <= 1000 for name in files)
    text = (tmp_path / "log.txt.1").read_text() + run.log.read_text()
    told = [int(line.rpartition(" ")[2]) for line in text.splitlines()]
    assert told == list(range(100 - len(told), 100)) and len(told) > 10


def test_hostile_text_is_escaped_in_the_log(tmp_path: Path) -> None:
    with RunDir.create(tmp_path) as run:
        run.open_log()
        logging.getLogger("rlrun.test").info("said: %s", "\x1b[2J\u202eevil")
    assert "said: \\x1b[2J\\u202eevil" in run.log.read_text()


@pytest.mark.parametrize("name", ["metrics.jsonl", "status.json", "log.txt", "run.lock"])
def test_a_pipe_in_the_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "config.yaml").write_text("")
    os.mkfifo(tmp_path / name)
    for opening in (RunDir.read, RunDir.resume):
        with pytest.raises(StorageError, match=f"{name}: is no regular file"):
            opening(tmp_path)


def test_a_log_that_cannot_be_written_is_said_once_and_does_not_raise(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    if not os.path.exists("/dev/full"):
        pytest.skip("needs /dev/full")
    logger = logging.getLogger("rlrun.test")
    run = RunDir.create(tmp_path)
    run.log.symlink_to("/dev/full")
    run.open_log()
    logger.info("one")
    logger.info("two")
    run.close()
    assert sum("cannot be written" in message for message in caplog.messages) == 1
