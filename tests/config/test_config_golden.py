# SPDX-License-Identifier: Apache-2.0
"""Messages for typical mistakes, word by word. To accept new ones: RLRUN_WRITE_GOLDEN=1 pytest."""

import os
from pathlib import Path

import pytest

from rlrun.config import load
from rlrun.errors import ConfigError

GOLDEN = Path(__file__).parent / "golden"
CASES = sorted(path.stem for path in GOLDEN.glob("*.flags"))


def test_there_are_ten_cases() -> None:
    assert len(CASES) >= 10


@pytest.mark.parametrize("name", CASES)
def test_the_messages_are_as_they_were(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(GOLDEN)
    monkeypatch.delenv("RLRUN_TOKEN", raising=False)
    flags = (GOLDEN / f"{name}.flags").read_text(encoding="utf-8").splitlines()
    with pytest.raises(ConfigError) as caught:
        load(flags)
    expected = GOLDEN / f"{name}.txt"
    if os.environ.get("RLRUN_WRITE_GOLDEN"):
        expected.write_text(f"{caught.value}\n", encoding="utf-8")
    assert f"{caught.value}\n" == expected.read_text(encoding="utf-8")
