# SPDX-License-Identifier: Apache-2.0
"""A short run in a process of its own that notes which settings are read."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from rlrun.config import Loaded, load


def sections(settings: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every settings object below one, with its dotted name and a dot behind it."""
    yield path, settings
    for field in fields(settings):
        inner = getattr(settings, field.name)
        if is_dataclass(inner):
            yield from sections(inner, f"{path}{field.name}.")


def note_reads(loaded: Loaded) -> set[str]:
    """From now on the set gets the key of every setting that is read."""
    read: set[str] = set()
    paths = {id(section): path for path, section in sections(loaded.config)}
    everywhere: dict[type, set[str]] = {}
    for path, section in sections(loaded.config):
        everywhere.setdefault(type(section), set()).add(path)

    def get(section: Any, name: str) -> Any:
        if not name.startswith("_"):
            # A copy of a section is known by its class alone.
            own = paths.get(id(section))
            for path in everywhere[type(section)] if own is None else {own}:
                read.add(f"{path}{name}")
        return object.__getattribute__(section, name)

    for kind in everywhere:
        kind.__getattribute__ = get  # type: ignore[method-assign,assignment]  # watched
    return read


def run(overrides: list[str], out: Path) -> None:
    """Trains, and writes a list of the keys of the run that nothing read."""
    # Output of the run is of no interest to anybody.
    os.dup2(os.open(out.with_suffix(".log"), os.O_WRONLY | os.O_CREAT, 0o600), 1)
    from rlrun.assemble import train

    loaded = load(overrides)
    read = note_reads(loaded)
    train(loaded)
    unread = [key for key in loaded.values if not _is_read(key, read)]
    out.write_text(json.dumps(unread))


def _is_read(key: str, read: set[str]) -> bool:
    """Whether a key was read; names within a free mapping are read with the mapping."""
    parts = key.split(".")
    return any(".".join(parts[:n]) in read for n in range(2, len(parts) + 1)) or key in read
