# SPDX-License-Identifier: Apache-2.0
"""`rlrun view` beyond the rollouts of a step: steps, validations, files, how answers change."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.errors import ConfigError, StorageError
from rlrun.run_dir.directory import RunDir
from rlrun.run_dir.records import write_lines
from rlrun.view import view
from rlrun.view.difference import differences
from tests.conftest import rlrun
from tests.report.run_factory import HOSTILE, make_run, trained_line, validation_line


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_run(tmp_path_factory.mktemp("view") / "run")


def shown(root: Path, **options: object) -> str:
    file = io.StringIO()
    view(root, file=file, **options)  # type: ignore[arg-type]  # options of view
    return file.getvalue()


def test_the_steps_are_a_table_with_what_each_waited_for(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    lines = shown(run, steps=2).splitlines()
    assert "ended last" in lines[-3]
    assert re.match(r" +5 .* 10 +4 +rows:19 +long answer, 3\.8 s", lines[-2])
    assert re.match(r" +6 +\S+ +0\.5 ", lines[-1])
    assert len(re.findall(r"rows:19", shown(run, steps=0))) == 6
    monkeypatch.setenv("COLUMNS", "80")
    narrow = shown(run, steps=2).splitlines()
    assert [line.split()[0] for line in narrow[-3:]] == ["step", "5", "6"]
    assert max(map(len, narrow[-3:])) <= 80


def test_samples_of_a_validation_are_shown(run: Path) -> None:
    text = shown(run, validation=True, count=1)
    assert "step 6, 4 prompts, 4 samples" in text
    assert re.search(r"^1 +2 +50\.0%", text, re.MULTILINE)
    assert "prompt validation:0, sample 0: reward 0 (correct 0, " not in text
    assert "prompt validation:0, sample 0: reward 0 (correct 0)" in text
    assert "reference:\n</script>" in text and "\u202e" not in text
    with pytest.raises(StorageError, match="holds nothing of step 5"):
        shown(run, validation=True, step=5)


def test_a_file_of_samples_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "samples.jsonl"
    failed = validation_line(0, 1) | {"reward": None}
    write_lines(path, [*(validation_line(0, n) for n in range(3)), failed])
    text = shown(path, sort="best", count=1)
    assert "prompt validation:1, sample 0: reward 1" in text
    assert re.search(r"^failed +1 +25\.0%", text, re.MULTILINE)
    only = shown(path, prompt_id="validation:2")
    assert "prompt validation:2," in only and "prompt validation:1," not in only
    with pytest.raises(ConfigError, match="no order 'advantage'"):
        shown(path, sort="advantage")
    with pytest.raises(StorageError, match="no sample of prompt 'x'"):
        shown(path, prompt_id="x")
    done = rlrun("view", str(path), "-n", "1")
    assert done.code == 0 and "samples.jsonl: step 0" in done.out


def test_the_best_answers_of_a_prompt_are_compared(tmp_path: Path) -> None:
    root = make_run(tmp_path / "run", steps=3)
    run = RunDir.read(root)
    for step, text in ((1, "the sum is 4"), (2, "the sum is 5 <b>"), (3, HOSTILE)):
        lines = [trained_line(step, 1, sample, text, 30) for sample in range(2)]
        write_lines(run.trained_file(step), lines)
    text = shown(root, prompt_id="rows:1", diff=True)
    assert "step 1 to 2: reward 1 to 1" in text
    assert "the sum is [-4-]{+5 <b>+}" in text
    assert "\u202e" not in text and "\\u202e" in text
    with pytest.raises(ConfigError, match="--prompt"):
        shown(root, diff=True)


@given(st.text(max_size=60), st.text(max_size=60))
def test_a_difference_holds_both_texts(old: str, new: str) -> None:
    found = list(differences(old, new))
    assert "".join(part for sign, part in found if sign != "+") == old
    assert "".join(part for sign, part in found if sign != "-") == new
