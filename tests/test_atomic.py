# SPDX-License-Identifier: Apache-2.0
"""Files are there completely or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rlrun.atomic import atomic_file, remove_temporaries, write_file
from rlrun.errors import StorageError


def test_content_is_replaced_and_no_temporary_stays(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_file(path, "old")
    write_file(path, "nëw")
    assert path.read_text(encoding="utf-8") == "nëw"
    assert os.listdir(tmp_path) == ["a.json"]


def test_an_exception_in_the_block_leaves_the_old_content(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_file(path, "old")
    with pytest.raises(RuntimeError), atomic_file(path) as file:
        file.write(b"half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_an_unwritable_place_is_a_storage_error_with_the_path(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"file/x: cannot write: Not a directory") as caught:
        write_file(tmp_path / "file" / "x", "")
    assert caught.value.exit_code == 7


def test_a_link_under_the_temporary_name_leads_nowhere(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / ".out.tmp").symlink_to(precious)
    with pytest.raises(StorageError, match="symbolic link"):
        write_file(tmp_path / "out", "theirs")
    assert precious.read_text() == "mine"


def test_a_full_disk_leaves_the_old_content_and_no_temporary(tmp_path: Path) -> None:
    program = """
import resource, sys
from pathlib import Path
from rlrun.atomic import write_file
from rlrun.errors import StorageError
path = Path(sys.argv[1])
write_file(path, "old")
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
try:
    write_file(path, "x" * 5000)
except StorageError as error:
    sys.exit(str(error))
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "a")], capture_output=True, text=True
    )
    assert "cannot write: File too large" in done.stderr
    assert (tmp_path / "a").read_text() == "old"
    assert os.listdir(tmp_path) == ["a"]


def test_a_killed_writer_leaves_old_or_new_content(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from rlrun.atomic import write_file
for number in range(10**9):
    write_file(Path(sys.argv[1]), str(number % 10) * 100_000)
    if number == 0:
        print("ready", flush=True)
"""
    path = tmp_path / "a"
    for delay in (0.001, 0.004, 0.009, 0.016):
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(delay)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        content = path.read_text()
        assert len(content) == 100_000 and len(set(content)) == 1
        remove_temporaries(tmp_path)
        assert os.listdir(tmp_path) == ["a"]


def test_removing_temporaries_spares_everything_else(tmp_path: Path) -> None:
    (tmp_path / ".a.tmp").write_text("")
    (tmp_path / ".b.tmp").mkdir()
    (tmp_path / ".b.tmp" / "x").write_text("")
    for name in (".hidden", "c.tmp", "d"):
        (tmp_path / name).write_text("")
    remove_temporaries(tmp_path)
    assert sorted(os.listdir(tmp_path)) == [".hidden", "c.tmp", "d"]
    remove_temporaries(tmp_path / "missing")
