# SPDX-License-Identifier: Apache-2.0
"""Where each thing of a run lies. docs/run_directory.md describes the layout for users."""

from __future__ import annotations

import os
import re
from pathlib import Path

from rlrun.atomic import storage_error

_STEP_FILE = re.compile(r"step_(\d+)\.jsonl")


class RunPaths:
    """Paths of a run directory.

    Attributes:
        root: The folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    @property
    def config(self) -> Path:
        """The resolved configuration."""
        return self.root / "config.yaml"

    @property
    def metrics(self) -> Path:
        """A line of metrics per step."""
        return self.root / "metrics.jsonl"

    @property
    def timeline(self) -> Path:
        """Who did what and when, a line per step; all of it depends on the clock."""
        return self.root / "timeline.jsonl"

    @property
    def origins(self) -> Path:
        """Where each value of config.yaml came from."""
        return self.root / "origins.json"

    @property
    def events(self) -> Path:
        """The scheduler's event log."""
        return self.root / "events.jsonl"

    @property
    def status(self) -> Path:
        """State and reason, for job schedulers."""
        return self.root / "status.json"

    @property
    def http_server(self) -> Path:
        """Address and key of the HTTP server, while it runs; for the owner's eyes."""
        return self.root / "http_server.json"

    @property
    def log(self) -> Path:
        """What was said, with times."""
        return self.root / "log.txt"

    @property
    def report(self) -> Path:
        """The HTML report."""
        return self.root / "report.html"

    @property
    def tensorboard(self) -> Path:
        """Folder of TensorBoard event files."""
        return self.root / "tensorboard"

    @property
    def checkpoints(self) -> Path:
        """Folder of checkpoints."""
        return self.root / "checkpoints"

    @property
    def trained(self) -> Path:
        """Folder with one file of trained trajectories per step."""
        return self.root / "trained"

    @property
    def validation(self) -> Path:
        """Folder with one file of scored responses per validation."""
        return self.root / "validation"

    @property
    def superseded(self) -> Path:
        """Folder of what resumes moved away."""
        return self.root / "superseded"

    def trained_file(self, step: int) -> Path:
        """What was trained in a step."""
        return self.trained / f"step_{step:06d}.jsonl"

    def validation_file(self, step: int) -> Path:
        """What the validation after a step saw."""
        return self.validation / f"step_{step:06d}.jsonl"

    def trained_steps(self) -> list[int]:
        """Steps that have a file in trained/, ascending."""
        return _step_files(self.trained)

    def validation_steps(self) -> list[int]:
        """Steps that have a file in validation/, ascending."""
        return _step_files(self.validation)


def _step_files(folder: Path) -> list[int]:
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if entry.is_file()]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise storage_error(folder, "list", error) from error
    return sorted(int(m.group(1)) for name in names if (m := _STEP_FILE.fullmatch(name)))
