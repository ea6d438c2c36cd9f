# SPDX-License-Identifier: Apache-2.0
"""Stored rollouts together with the run that made them: its environment and reference answers."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TextIO

from rlrun.config import load, load_section
from rlrun.config.data_schema import OnBadRow
from rlrun.data.load import load_rows
from rlrun.evaluation.score import Counts, score_file


def score(file: Path, overrides: Sequence[str], config_dir: Path | None, out: TextIO) -> Counts:
    """Scores a file of responses; see ``score_file``.

    A file of a run directory is scored by that run's environment, unless an override says
    otherwise, and lines without a reference answer get it from the run's training data.

    Raises:
        DataError: A line or the run's data cannot be used.
        ConfigError: The overrides are wrong.
    """
    config = run_config(file)
    recipe = [] if config is None else [f"+recipe={config}"]
    with contextlib.redirect_stdout(sys.stderr):  # user code may print when it is imported
        env = load_section("env", [*recipe, *overrides], config_dir)
    if config is None:
        return score_file(file, env, out)
    return score_file(file, env, out, RunAnswers(config))


def run_config(file: Path) -> Path | None:
    """The config.yaml of the run that a file of trained/ or validation/ belongs to."""
    config = file.absolute().parent.parent / "config.yaml"
    inside = file.absolute().parent.name in ("trained", "validation")
    return config if inside and config.is_file() else None


class RunAnswers(Mapping[str, str]):
    """Reference answers of a run's training rows by prompt_id, read when first asked for."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._answers: dict[str, str] | None = None

    def _read(self) -> dict[str, str]:
        if self._answers is None:
            run = load([f"+recipe={self._config}"]).config
            rows = load_rows(
                run.data.train, run.env, on_bad_row=OnBadRow.SKIP, base_dir=Path.cwd()
            ).rows
            self._answers = {row.row_id: row.answer for row in rows}
        return self._answers

    def __getitem__(self, prompt_id: str) -> str:
        return self._read()[prompt_id]

    def __iter__(self) -> Iterator[str]:
        return iter(self._read())

    def __len__(self) -> int:
        return len(self._read())
