# SPDX-License-Identifier: Apache-2.0
"""Temporary folders: removed by their maker, by its end, or by the next one; never somebody's."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.errors import ConfigError
from rlrun.process.temporary import (
    ELSEWHERE,
    KEPT_S,
    LOGS,
    MAX_SOCKET_PATH,
    OWNER,
    SCRATCH,
    TemporaryFolder,
    socket_parent,
)
from tests.conftest import environment

MAKER = """
import os, sys, time
from pathlib import Path
from rlrun.process.temporary import TemporaryFolder
folders = [TemporaryFolder(prefix, parent=Path(sys.argv[1])) for prefix in sys.argv[3:]]
for folder in folders:
    (folder.path / "below").mkdir()
    (folder.path / "below" / "file").touch()
if sys.argv[2] == "forks" and os.fork() == 0:
    sys.exit()
print(*(folder.path for folder in folders), flush=True)
sys.stdin.read()
"""


class Maker:
    """Another process that makes a folder for each prefix."""

    def __init__(self, parent: Path, *prefixes: str, does: str = "waits") -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MAKER, str(parent), does, *prefixes],
            env=environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.folders = [Path(name) for name in self.process.stdout.readline().split()]

    def end(self) -> None:
        self.process.communicate("")

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()


@pytest.fixture
def killed(tmp_path: Path) -> Iterator[list[Path]]:
    """Folders of a process that was killed: scratch, logs."""
    maker = Maker(tmp_path, SCRATCH, LOGS)
    maker.kill()
    yield maker.folders


def make_both(parent: Path) -> list[TemporaryFolder]:
    return [TemporaryFolder(prefix, parent=parent) for prefix in (SCRATCH, LOGS)]


def test_the_folder_of_a_killed_process_is_removed_by_the_next_and_that_of_a_live_one_is_not(
    tmp_path: Path,
) -> None:
    own, maker = TemporaryFolder(SCRATCH, parent=tmp_path), Maker(tmp_path, SCRATCH)
    (theirs,) = maker.folders
    TemporaryFolder(SCRATCH, parent=tmp_path).remove()
    assert own.path.is_dir() and theirs.is_dir()
    maker.kill()
    assert (theirs / "below" / "file").exists()
    TemporaryFolder(SCRATCH, parent=tmp_path).remove()
    assert list(tmp_path.iterdir()) == [own.path]


def test_logs_of_a_killed_process_stay_for_a_week(killed: list[Path], tmp_path: Path) -> None:
    scratch, logs = killed
    made = make_both(tmp_path)
    assert logs.is_dir() and not scratch.exists()
    long_ago = time.time() - KEPT_S - 1
    for path in (logs, *logs.rglob("*")):
        os.utime(path, (long_ago, long_ago))
    # What was written last counts.
    os.utime(logs / "below" / "file")
    made += make_both(tmp_path)
    assert logs.is_dir()
    os.utime(logs / "below" / "file", (long_ago, long_ago))
    made += make_both(tmp_path)
    assert not logs.exists()
    assert all(folder.path.is_dir() for folder in made)


def test_what_is_not_certainly_abandoned_stays(killed: list[Path], tmp_path: Path) -> None:
    scratch, _ = killed
    unclaimed = tmp_path / f"{SCRATCH}mine"
    unclaimed.mkdir()
    link = tmp_path / f"{SCRATCH}link"
    link.symlink_to(scratch)
    owner = scratch / OWNER
    owner.write_text(owner.read_text().replace(" on ", " on another-"))
    TemporaryFolder(SCRATCH, parent=tmp_path).remove()
    assert scratch.is_dir() and unclaimed.is_dir() and link.is_symlink()


def test_a_folder_goes_with_its_process_and_not_with_a_child_of_it(tmp_path: Path) -> None:
    maker = Maker(tmp_path, SCRATCH, does="forks")
    (theirs,) = maker.folders
    TemporaryFolder(SCRATCH, parent=tmp_path).remove()
    assert (theirs / "below" / "file").exists()
    maker.end()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_removed_once_and_with_the_last_reference(tmp_path: Path) -> None:
    folder = TemporaryFolder(SCRATCH, parent=tmp_path)
    (folder.path / "file").touch()
    folder.remove()
    folder.remove()
    assert list(tmp_path.iterdir()) == []
    folder = TemporaryFolder(SCRATCH, parent=tmp_path)
    del folder
    assert list(tmp_path.iterdir()) == []


def test_sockets_are_where_their_paths_are_not_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    name, variable = "x" * 36, "RLRUN_TEST_SOCKETS"
    for length in range(2, MAX_SOCKET_PATH):
        parent = "/" + (length - 1) * "d"
        monkeypatch.setattr(tempfile, "tempdir", parent)
        given = socket_parent(variable, len(name))
        path = f"{parent if given is None else given}/{SCRATCH}12345678/{name}"
        assert len(path) <= MAX_SOCKET_PATH
        # The folder that the user wants, wherever it will do.
        assert (given is None) == (len(f"{parent}/{SCRATCH}12345678/{name}") <= MAX_SOCKET_PATH)


def test_the_folder_that_a_user_says_is_made_or_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "where" / "a user says"
    monkeypatch.setenv("RAY_TMPDIR", str(where))
    assert socket_parent("RAY_TMPDIR", 9) == where and where.is_dir()
    (tmp_path / "file").touch()
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path / "file"))
    with pytest.raises(ConfigError, match=r"file: sockets .* cannot be made .* unset the variable"):
        socket_parent("RAY_TMPDIR", 9)


def test_what_is_elsewhere_goes_with_the_folder_unless_the_name_is_somebody_elses(
    tmp_path: Path,
) -> None:
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for path in (mine, theirs):
        path.touch()
    folder = TemporaryFolder(SCRATCH, parent=tmp_path)
    lines = (f"{mine.stat().st_ino} {mine}", f"1 {theirs}", f"2 {tmp_path / 'gone'}")
    (folder.path / ELSEWHERE).write_text("\n".join(lines))
    folder.remove()
    assert list(tmp_path.iterdir()) == [theirs]
