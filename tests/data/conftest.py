# SPDX-License-Identifier: Apache-2.0
"""Data sources with every setting off, and an environment that refuses answers on request."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from rlrun.config.data_schema import DataSource, OnBadRow
from rlrun.data.load import LoadedRows, load_rows
from rlrun.interfaces import Env, Environment
from rlrun.types import Row


@dataclass(kw_only=True, slots=True)
class RefusingEnv(Env):
    refused: tuple[str, ...] = ()

    def check_row(self, row: Row) -> str | None:
        return f"cannot read {row.answer!r}" if row.answer in self.refused else None

    def start(self) -> Environment:
        raise NotImplementedError


def make_source(source: str | None, **settings: Any) -> DataSource:
    off: dict[str, Any] = {
        "split": None,
        "limit": None,
        "size": None,
        "seed": None,
        "options": {},
        "prompt_field": None,
        "answer_field": None,
        "answer_pattern": None,
        "system_prompt": None,
        "prompt_template": None,
        "shuffle": True,
    }
    return DataSource(source=source, **(off | settings))


Load = Callable[..., LoadedRows]


@pytest.fixture
def load(tmp_path: Path) -> Load:
    """load(content or source name, skip=False, refused=(), **settings)."""

    def run(
        data: bytes | str | None,
        *,
        skip: bool = False,
        refused: tuple[str, ...] = (),
        **settings: Any,
    ) -> LoadedRows:
        if isinstance(data, bytes):
            (tmp_path / "rows.jsonl").write_bytes(data)
            data = "rows.jsonl"
        return load_rows(
            make_source(data, **settings),
            RefusingEnv(refused=refused),
            on_bad_row=OnBadRow.SKIP if skip else OnBadRow.ERROR,
            base_dir=tmp_path,
        )

    return run
