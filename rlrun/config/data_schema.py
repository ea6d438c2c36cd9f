# SPDX-License-Identifier: Apache-2.0
"""The section data: where rows come from, and how their fields are read. Values live in conf/."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from rlrun.console.counted import counted
from rlrun.interfaces import Checked, setting


class OnBadRow(StrEnum):
    """What a data row that cannot be used does."""

    ERROR = "error"
    SKIP = "skip"


class SourceKind(StrEnum):
    """Where rows can come from; the text before the colon of ``source``, files having none."""

    FILE = "file"
    GENERATOR = "generator"
    REASONING_GYM = "reasoning_gym"
    HF = "hf"


_FIELD_SETTINGS = frozenset({"prompt_field", "answer_field", "answer_pattern"})
_REQUIRED_SETTINGS: dict[SourceKind, frozenset[str]] = {
    SourceKind.FILE: frozenset(),
    SourceKind.GENERATOR: frozenset({"split"}),
    SourceKind.REASONING_GYM: frozenset({"size", "seed"}),
    SourceKind.HF: frozenset({"split"}),
}
_ALLOWED_SETTINGS: dict[SourceKind, frozenset[str]] = {
    SourceKind.FILE: _FIELD_SETTINGS,
    SourceKind.GENERATOR: frozenset({"split"}),
    SourceKind.REASONING_GYM: frozenset({"size", "seed", "options"}),
    SourceKind.HF: _FIELD_SETTINGS | {"split"},
}


@dataclass(kw_only=True, slots=True)
class DataSource(Checked):
    """One set of rows: where they come from and how their fields are read."""

    source: str | None
    split: str | None
    limit: int | None = setting(ge=1)
    size: int | None = setting(ge=1)
    seed: int | None = setting(ge=0)
    options: dict[str, Any]
    prompt_field: str | None
    answer_field: str | None
    answer_pattern: str | None
    system_prompt: str | None
    prompt_template: str | None
    shuffle: bool

    def scheme(self) -> tuple[str, str]:
        """The text before and after the colon of ``source``; ("file", path) where there is none.

        A colon inside a path is told apart by a slash before it ("./a:b.jsonl").
        """
        name, colon, rest = (self.source or "").partition(":")
        if colon and re.fullmatch(r"[A-Za-z][A-Za-z0-9_+.-]*", name):
            return name, rest
        return SourceKind.FILE.value, self.source or ""

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Settings that the kind of source needs or does not read, and unusable texts."""
        if self.source is not None:
            yield from self._source_problems()
        count = 1 if self.prompt_template is None else self.prompt_template.count("{problem}")
        if count != 1:
            yield (
                ("prompt_template",),
                f"prompt_template holds {{problem}} {counted(count, 'time')}",
                "Write {problem} exactly once, where the problem belongs",
            )
        for name, text in (
            ("system_prompt", self.system_prompt),
            ("answer_pattern", self.answer_pattern),
            ("prompt_field", self.prompt_field),
        ):
            if text is not None and not text.strip():
                yield (name,), f"{name} is empty", f"Give a text, or {name}=null for none"

    def _source_problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        name, rest = self.scheme()
        if name not in list(SourceKind) or not rest.strip():
            yield (
                ("source",),
                f"source={self.source!r} names no source",
                "Write the path of a .jsonl, .json or .parquet file or of a folder of them (with "
                "./ before a name that has a colon), generator:NAME, reasoning_gym:NAME or hf:NAME",
            )
            return
        kind = SourceKind(name)
        values = {
            "split": self.split,
            "size": self.size,
            "seed": self.seed,
            "options": self.options or None,
            "prompt_field": self.prompt_field,
            "answer_field": self.answer_field,
            "answer_pattern": self.answer_pattern,
        }
        for key, value in values.items():
            if value is None and key in _REQUIRED_SETTINGS[kind]:
                yield (
                    (key, "source"),
                    f"{key} is not set, and source={self.source} needs it",
                    f"Set {key}",
                )
            if value is not None and key not in _ALLOWED_SETTINGS[kind]:
                yield (
                    (key, "source"),
                    f"{key}={value!r} has no effect with source={self.source}",
                    f"Remove it, or write {key}={'{}' if key == 'options' else 'null'}; with "
                    "data=default nothing is set",
                )


@dataclass(kw_only=True, slots=True)
class Data(Checked):
    """Training and validation rows."""

    train: DataSource
    validation: DataSource
    on_bad_row: OnBadRow
    max_prompt_tokens: int | None = setting(ge=1)

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """Training needs rows; validation is never shuffled."""
        if self.train.source is None:
            yield (
                ("train.source",),
                "train.source is not set",
                "Give a file, a folder, generator:NAME, reasoning_gym:NAME or hf:NAME",
            )
        if self.validation.shuffle:
            yield (
                ("validation.shuffle",),
                "validation.shuffle=true has no effect: all rows are evaluated in their order",
                "Write validation.shuffle=false",
            )
