# SPDX-License-Identifier: Apache-2.0
"""Every broken input ends in its message and exit code; BLESS=1 writes the messages anew."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from rlrun.cli import main
from tests.bad_inputs.cases import CASES

GOLDEN = Path(__file__).parent / "golden"
SHOWN = 700
EXIT_CODES = {2, 3, 7}


def told(folder: Path) -> tuple[int, str]:
    """Exit code and message of a command, without what depends on the machine."""
    out, errors = io.StringIO(), io.BytesIO()
    # As Python opens it, standard error can take any text.
    err_file = io.TextIOWrapper(errors, "utf-8", "backslashreplace", write_through=True)
    with redirect_stdout(out), redirect_stderr(err_file), pytest.raises(SystemExit) as ended:
        main()
    code = ended.value.code
    assert isinstance(code, int)
    # The lines of rlrun check are its result and come on stdout.
    text = "\n".join(line for line in out.getvalue().splitlines() if line.startswith("fail"))
    text += errors.getvalue().decode()
    text = text.replace(str(folder), "HERE")
    text = re.sub(r"\d+(\.\d+)? GiB|\(\d+ steps.*?\)", "SIZE", text)
    return code, text


def shortened(text: str) -> str:
    text = re.sub(r"(.)\1{40,}", r"\1...", re.sub(r"(\$\{|\[|x,|\{a:|word ){9,}", r"\1...", text))
    return text if len(text) <= SHOWN else text[:SHOWN] + "..."


@pytest.mark.parametrize("kind", CASES)
def test_a_broken_input_ends_in_its_message_and_exit_code(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: dict[str, list[object]] = {}
    for name, case in CASES[kind].items():
        folder = tmp_path / name
        for path, content in case.files.items():
            file = folder / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(content if isinstance(content, bytes) else content.encode())
        folder.mkdir(exist_ok=True)
        with monkeypatch.context() as patch:
            patch.chdir(folder)
            for variable, value in case.variables.items():
                patch.setenv(variable, value)
            patch.setattr(sys, "argv", ["rlrun", *case.arguments])
            code, text = told(folder)
        assert code in EXIT_CODES, (name, text)
        assert "defect" not in text, (name, text)
        assert "Traceback" not in text, (name, text)
        assert "\x1b" not in text, (name, text)
        assert not any(value in text for value in case.variables.values()), name
        found[name] = [code, *shortened(text).splitlines()]
    file = GOLDEN / f"{kind}.json"
    if os.environ.get("BLESS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    assert found == json.loads(file.read_text(encoding="utf-8"))
