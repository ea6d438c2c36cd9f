# SPDX-License-Identifier: Apache-2.0
"""What a Ray that a run started leaves in the folder for temporary files."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlrun.cluster.ray_session import Session


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """Ray's folder, as Ray makes it."""
    path = tmp_path / "session_2026-01-01_00-00-00_000000_1"
    (path / "logs").mkdir(parents=True)
    (path / "logs" / "raylet.out").touch()
    (tmp_path / "session_latest").symlink_to(path)
    return path


def test_it_goes_with_the_run_and_so_does_the_link_to_it(session: Path) -> None:
    other = session.with_name("session_2026-01-01_00-00-00_000000_2")
    other.mkdir()
    ours = Session(session)
    ours.end()
    ours.end()
    assert list(session.parent.iterdir()) == [other]


def test_a_link_to_another_one_stays(session: Path) -> None:
    other, link = session.with_name("session_other"), session.parent / "session_latest"
    other.mkdir()
    link.unlink()
    link.symlink_to(other)
    Session(session).end()
    assert set(session.parent.iterdir()) == {other, link}


def test_it_stays_where_an_error_sends_somebody_to_its_logs(session: Path) -> None:
    ours = Session(session)
    assert str(session / "logs") in ours.logs()
    ours.end()
    assert (session / "logs" / "raylet.out").exists()
    assert (session.parent / "session_latest").exists()
