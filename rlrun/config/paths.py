# SPDX-License-Identifier: Apache-2.0
"""Where conf/ and recipes/ are, and paths as users give them: any text, possible or not."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent.parent


def conf_dir() -> Path:
    """The folder with a folder per slot and run.yaml."""
    return _shipped("conf")


def recipes_dir() -> Path:
    """The folder with the recipes that come with rlrun."""
    return _shipped("recipes")


def _shipped(name: str) -> Path:
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def expand(text: str) -> Path:
    """A path as given, with ~ replaced where there is such a user."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        return Path(text)


def is_file(path: Path) -> bool:
    """Whether there is such a file; no file has a name that the system cannot look up."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_dir(path: Path) -> bool:
    """Whether there is such a folder; no folder has a name that the system cannot look up."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def display(path: Path) -> str:
    """A path as messages show it: short for shipped files and below the current folder."""
    resolved = path.resolve()
    for shipped in (conf_dir(), recipes_dir()):
        if resolved.is_relative_to(shipped):
            return str(resolved.relative_to(shipped.parent))
    if resolved.is_relative_to(Path.cwd()):
        return str(resolved.relative_to(Path.cwd()))
    return str(resolved)
