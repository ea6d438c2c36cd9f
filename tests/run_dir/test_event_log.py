# SPDX-License-Identifier: Apache-2.0
"""The event log holds whole lines, tolerates a torn last one, and is cut back without loss."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.errors import StorageError
from rlrun.run_dir.event_log import Cut, EventLog, LogReader, check_history, truncate_after
from rlrun.scheduler import Admit, Finish, Outcome, StepTrained, TokenCategory, VersionPublished


def write(path: Path, first: int, last: int) -> None:
    log = EventLog(path)
    for seq in range(first, last + 1):
        log.append(seq, VersionPublished(seq), (Admit(seq, 0), Finish("x")))
    log.sync()
    log.close()
    log.close()


def seqs(path: Path) -> list[int]:
    return [line.seq for line in LogReader(path)]


def test_lines_come_back_as_they_were_appended(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 1)
    write(path, 2, 2)
    lines = list(LogReader(path))
    assert [line.event for line in lines] == [VersionPublished(n) for n in range(3)]
    assert lines[2].decisions == (Admit(2, 0), Finish("x"))
    assert lines[-1].end == path.stat().st_size


@pytest.mark.parametrize("torn", [b'{"seq":3', b"\x00\x00\n", b'{"seq":3,"event":{"type":"Pau'])
def test_torn_last_line_is_told_and_left_out(tmp_path: Path, torn: bytes) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 2)
    with path.open("ab") as file:
        file.write(torn)
    reader = LogReader(path)
    assert [line.seq for line in reader] == [0, 1, 2]
    assert reader.torn


def test_broken_line_elsewhere_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"garbage\n" + lines[2])
    with pytest.raises(StorageError, match=r"events.jsonl:2: not a line of an event log"):
        list(LogReader(path))


def test_missing_line_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + lines[2])
    with pytest.raises(StorageError, match=r":2: event 2 where event 1 belongs"):
        list(LogReader(path))


def test_missing_file_is_an_error_of_storage(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot be read") as caught:
        list(LogReader(tmp_path / "events.jsonl"))
    assert caught.value.exit_code == 7


def test_log_with_a_torn_end_is_not_appended_to(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    path.write_bytes(b'{"seq":0')
    with pytest.raises(StorageError, match="torn"):
        EventLog(path)


def test_log_of_another_run_is_told_by_its_steps_and_trained_tokens(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    log = EventLog(path)
    for step in (1, 2, 3):
        tokens = {TokenCategory.TRAINED: 10 * step, TokenCategory.STALE: 7}
        log.append(step - 1, StepTrained(step, {step: Outcome.TRAINED}, tokens), ())
    log.close()
    before = path.read_bytes()
    check_history(path, 1, 2, 30)
    check_history(path, 2, 3, 60)
    for seq, steps, tokens in ((1, 2, 31), (1, 3, 30), (2, 2, 30)):
        with pytest.raises(StorageError, match=r"events.jsonl: is not of this run") as caught:
            check_history(path, seq, steps, tokens)
        assert caught.value.exit_code == 7
    with pytest.raises(StorageError, match="ends at event 2 but the checkpoint is at event 3"):
        check_history(path, 3, 3, 60)
    assert path.read_bytes() == before


def test_cut_moves_the_tail_and_keeps_the_head(tmp_path: Path) -> None:
    path, superseded = tmp_path / "events.jsonl", tmp_path / "superseded"
    write(path, 0, 5)
    with path.open("ab") as file:
        file.write(b'{"torn')
    before = path.read_bytes()
    cut = truncate_after(path, 2, superseded)
    assert cut.events == tuple(VersionPublished(n) for n in (3, 4, 5))
    assert seqs(path) == [0, 1, 2]
    assert cut.moved_to is not None
    assert path.read_bytes() + cut.moved_to.read_bytes() == before
    write(path, 3, 3)
    assert seqs(path) == [0, 1, 2, 3]


def test_cut_again_returns_the_same_until_something_is_appended(tmp_path: Path) -> None:
    path, superseded = tmp_path / "events.jsonl", tmp_path / "superseded"
    write(path, 0, 5)
    first = truncate_after(path, 2, superseded)
    assert truncate_after(path, 2, superseded) == first
    assert len(list(superseded.iterdir())) == 1
    write(path, 3, 4)
    second = truncate_after(path, 2, superseded)
    assert second.events == (VersionPublished(3), VersionPublished(4))
    assert second.moved_to != first.moved_to
    assert len(list(superseded.iterdir())) == 2


def test_cut_that_was_killed_before_the_log_was_shortened_is_completed(tmp_path: Path) -> None:
    path, superseded = tmp_path / "events.jsonl", tmp_path / "superseded"
    write(path, 0, 5)
    whole = path.read_bytes()
    first = truncate_after(path, 2, superseded)
    path.write_bytes(whole)
    assert truncate_after(path, 2, superseded) == first
    assert seqs(path) == [0, 1, 2]
    assert len(list(superseded.iterdir())) == 1


def test_nothing_to_cut_changes_nothing(tmp_path: Path) -> None:
    path, superseded = tmp_path / "events.jsonl", tmp_path / "superseded"
    write(path, 0, 2)
    assert truncate_after(path, 2, superseded) == Cut((), None)
    assert not superseded.exists()


def test_everything_can_be_cut(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 2)
    assert len(truncate_after(path, -1, tmp_path / "superseded").events) == 3
    assert path.read_bytes() == b""


def test_log_that_ends_before_the_checkpoint_is_refused_untouched(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 2)
    with pytest.raises(StorageError, match="ends at event 2 but the checkpoint is at event 9"):
        truncate_after(path, 9, tmp_path / "superseded")
    assert seqs(path) == [0, 1, 2]


def test_killed_writer_leaves_whole_lines(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    program = (
        "import sys; from pathlib import Path\n"
        "from rlrun.run_dir.event_log import EventLog\n"
        "from rlrun.scheduler import VersionPublished\n"
        "log = EventLog(Path(sys.argv[1]))\n"
        "for seq in range(10**9): log.append(seq, VersionPublished(seq), ())\n"
    )
    writer = subprocess.Popen([sys.executable, "-c", program, str(path)])
    deadline = time.monotonic() + 120
    while not (path.exists() and path.stat().st_size > 20_000):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    os.kill(writer.pid, signal.SIGKILL)
    writer.wait()
    lines = list(LogReader(path))
    assert len(lines) > 100
    assert [line.event for line in lines] == [VersionPublished(n) for n in range(len(lines))]


def test_deeply_nested_line_is_an_error_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    write(path, 0, 2)
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"[" * 100_000 + b"\n" + lines[2])
    with pytest.raises(StorageError, match=r"events.jsonl:2: not a line of an event log"):
        list(LogReader(path))
