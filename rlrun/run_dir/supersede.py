# SPDX-License-Identifier: Apache-2.0
"""Moves what lies beyond a checkpoint out of a run's way, without ever losing any of it.

One call fills one folder, ``superseded/0001_after_step_000010``. While it is being filled its name
ends in ``.moving``; a call that finds such a folder was preceded by one that was killed, and goes
on where that one stopped. Each single move is atomic: a file or folder is renamed; of metrics.jsonl
the tail is first copied and made durable, then the file is cut behind its head. Killed between the
two, the tail exists twice, and the next call sees that the copy is there already.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path

from rlrun.atomic import fsync_dir, fsync_file, remove_temporaries, rename_durably, write_file

_log = logging.getLogger(__name__)

_FOLDER = re.compile(r"(\d+)_(after_step_\d+|from_the_start)(\.moving)?")
_STEP = re.compile(r"step_(\d+)(\.jsonl)?")


def move_beyond(root: Path, after_step: int) -> Path | None:
    """See RunDir.supersede.

    Raises:
        OSError: Something cannot be moved.
        StorageError: The same, for a file of lines.
    """
    superseded = root / "superseded"
    moving = _unfinished(superseded)
    if moving is not None and _target(superseded, moving, after_step) != moving:
        # Killed, and now resumed from another checkpoint: what was moved so far stands alone.
        _finish(moving)
        moving = None
    cuts = list(_cuts(root, after_step))
    later = list(_later(root, after_step))
    if not cuts and not later:
        return _finish(moving) if moving is not None else None
    if moving is None:
        superseded.mkdir(exist_ok=True)
        moving = _target(superseded, None, after_step)
        moving.mkdir()
        fsync_dir(superseded)
    remove_temporaries(moving)
    for path, head in cuts:
        _cut(path, head, moving)
    for path in later:
        destination = moving / path.relative_to(root)
        destination.parent.mkdir(exist_ok=True)
        fsync_dir(moving)
        rename_durably(path, free_name(destination))
    return _finish(moving)


def warn_of_lost_steps(metrics: Path, after_step: int) -> None:
    """Says if a metrics.jsonl that ``move_beyond`` has cut ends before the checkpoint's step."""
    last = b""
    if metrics.exists():
        with open(metrics, "rb") as file:
            for last in file:  # noqa: B007 (the last one counts)
                pass
    step = _step_of(last) or 0
    if step < after_step:
        _log.warning(
            "%s lacks the steps %d to %d, which the checkpoint has; restore them from a copy",
            metrics,
            step + 1,
            after_step,
        )


def free_name(path: Path) -> Path:
    """``path``, or the first of ``path.2``, ``path.3``, ... that does not exist."""
    number, candidate = 1, path
    while candidate.exists():
        number += 1
        candidate = path.with_name(f"{path.name}.{number}")
    return candidate


def _unfinished(superseded: Path) -> Path | None:
    found = sorted(path for path in superseded.glob("*.moving") if _FOLDER.fullmatch(path.name))
    return next(iter(found), None)


def _target(superseded: Path, moving: Path | None, after_step: int) -> Path:
    """The folder to fill: the next number, or that of a folder that is being filled already."""
    matches = [m for path in superseded.iterdir() if (m := _FOLDER.fullmatch(path.name))]
    number = max((int(m.group(1)) for m in matches), default=0) + 1
    if moving is not None:
        number = int(moving.name.split("_")[0])
    what = f"after_step_{after_step:06d}" if after_step >= 0 else "from_the_start"
    return superseded / f"{number:04d}_{what}.moving"


def _finish(moving: Path) -> Path:
    remove_temporaries(moving)
    final = moving.with_suffix("")
    rename_durably(moving, final)
    return final


def _later(root: Path, after_step: int) -> Iterator[Path]:
    for name in ("trained", "validation", "checkpoints"):
        folder = root / name
        if folder.is_dir():
            for path in sorted(folder.iterdir()):
                match = _STEP.fullmatch(path.name)
                if match and int(match.group(1)) > after_step:
                    yield path


def _cuts(root: Path, after_step: int) -> Iterator[tuple[Path, int]]:
    """Files with a line per step that have later ones, and the length of the head that stays."""
    for name in ("metrics.jsonl", "timeline.jsonl"):
        path = root / name
        head = _head_length(path, after_step)
        if path.exists() and head < path.stat().st_size:
            yield path, head


def _head_length(path: Path, after_step: int) -> int:
    """The length in bytes of the head of a file with a line per step that stays.

    Steps ascend in the file, so the head ends at the first line of a later step. It ends too at a
    line that is no JSON object with a step: a torn write, behind which nothing can be trusted.
    """
    length = 0
    if path.exists():
        with open(path, "rb") as file:
            for line in file:
                step = _step_of(line) if line.endswith(b"\n") else None
                if step is None or step > after_step:
                    break
                length += len(line)
    return length


def _step_of(line: bytes) -> int | None:
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    step = values.get("step") if isinstance(values, dict) else None
    return step if isinstance(step, int) else None


def _cut(path: Path, head: int, moving: Path) -> None:
    """Copies the bytes from ``head`` on into the folder, then shortens the file to its head."""
    with open(path, "rb") as file:
        file.seek(head)
        tail = file.read()
    copy = moving / path.name
    if not (copy.exists() and copy.read_bytes() == tail):
        write_file(free_name(copy), tail)
    os.truncate(path, head)
    fsync_file(path)
