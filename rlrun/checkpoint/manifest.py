# SPDX-License-Identifier: Apache-2.0
"""manifest.json of a checkpoint: which files belong to it, and how to tell that they are whole."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from rlrun import __version__
from rlrun.atomic import fsync_dir, write_file
from rlrun.run_dir.json_line import is_integer, is_number, is_text

NAME = "manifest.json"
FORMAT = 1


class Damaged(Exception):
    """A checkpoint is not what was saved; the text says which file and how."""


@dataclass(frozen=True, slots=True)
class Manifest:
    """What manifest.json says.

    Attributes:
        step: The step after which the checkpoint was saved.
        metrics: Metrics that were known then; None for a value that was not finite.
        files: Size in bytes and SHA-256 by path relative to the checkpoint.
    """

    step: int
    metrics: Mapping[str, float | None]
    files: Mapping[str, tuple[int, str]]


def seal(folder: Path, step: int, metrics: Mapping[str, float]) -> None:
    """Makes all files of a folder durable and adds a manifest of them.

    Raises:
        OSError: A file cannot be read or made durable.
        StorageError: The manifest cannot be written.
    """
    paths = sorted(folder.rglob("*"))
    files = {path.relative_to(folder).as_posix(): _seal(path) for path in paths if path.is_file()}
    for path in (*paths, folder):
        if path.is_dir():
            fsync_dir(path)
    content: dict[str, Any] = {
        "format": FORMAT,
        "rlrun": __version__,
        "step": step,
        "metrics": {n: float(v) if math.isfinite(v) else None for n, v in metrics.items()},
        "files": {name: {"size": size, "sha256": digest} for name, (size, digest) in files.items()},
    }
    content["sha256"] = _checksum(content)
    write_file(folder / NAME, json.dumps(content, indent=2) + "\n")


def read_manifest(folder: Path) -> Manifest:
    """The manifest of a checkpoint, without looking at the other files.

    Raises:
        Damaged: It is not there or not what was written.
        OSError: It cannot be read for another reason.
    """
    try:
        content = json.loads((folder / NAME).read_bytes())
        if content.pop("sha256") != _checksum(content):
            raise Damaged(f"{NAME} was altered")
        if content["format"] != FORMAT:
            raise Damaged(f"{NAME} has format {content['format']}, this version reads {FORMAT}")
        return _checked(content)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Damaged(f"{NAME} is missing") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Damaged(f"{NAME} is damaged ({error})") from error


def verify(folder: Path) -> Manifest:
    """The manifest, after comparing every file with it.

    Raises:
        Damaged: A file is missing or differs.
        OSError: A file cannot be read.
    """
    manifest = read_manifest(folder)
    for name, (size, digest) in manifest.files.items():
        path = folder / name
        if not path.is_file():
            raise Damaged(f"{name} is missing")
        if path.stat().st_size != size:
            raise Damaged(f"{name} has {path.stat().st_size} bytes instead of {size}")
        with open(path, "rb") as file:
            if hashlib.file_digest(file, "sha256").hexdigest() != digest:
                raise Damaged(f"{name} was altered (its SHA-256 differs)")
    return manifest


def _checked(content: Mapping[str, Any]) -> Manifest:
    files: dict[str, tuple[int, str]] = {}
    for name, entry in content["files"].items():
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or "\0" in name:
            raise Damaged(f"{NAME} names {name!r}, which is outside of the checkpoint")
        size, digest = entry["size"], entry["sha256"]
        if not is_integer(size) or size < 0 or not is_text(digest):
            raise Damaged(f"{NAME} does not say size and SHA-256 of {name}")
        files[name] = size, digest
    step, metrics = content["step"], content["metrics"]
    if not is_integer(step) or not isinstance(metrics, dict):
        raise Damaged(f"{NAME} does not say step and metrics")
    if not all(map(is_number, metrics.values())):
        raise Damaged(f"{NAME} has a metric that is no number")
    return Manifest(step, metrics, files)


def _seal(path: Path) -> tuple[int, str]:
    with open(path, "rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size, digest


def _checksum(content: Mapping[str, Any]) -> str:
    """Of everything but the checksum itself, whatever the layout of the file."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
