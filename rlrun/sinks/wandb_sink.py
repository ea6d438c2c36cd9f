# SPDX-License-Identifier: Apache-2.0
"""Metrics to Weights & Biases, by default into files that need neither network nor account.

Every process of a run is a run of its own there, in one group: a resume repeats steps, and a W&B
run takes each step once. The only place that knows the library.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from rlrun.config.schema import Wandb
    from rlrun.run_dir.directory import RunDir


class WandbSink:
    """A W&B run; offline its files are under wandb/ in the run directory."""

    name = "wandb"

    def __init__(self, run_dir: RunDir, settings: Wandb) -> None:
        """Starts the run.

        Args:
            run_dir: Names the group and holds the files.
            settings: Project and mode.

        Raises:
            OSError: It cannot be started: no account, no network, no room.
        """
        import wandb

        quiet = wandb.Settings(silent=True, console="off", x_disable_stats=True, disable_git=True)
        with _library():
            self._run: Any = wandb.init(
                project=settings.project,
                group=run_dir.root.name,
                name=run_dir.root.name,
                dir=str(run_dir.root),
                mode=settings.mode.value,
                config=yaml.safe_load(run_dir.config.read_bytes()),
                settings=quiet,
            )

    def write(self, step: int, wall_time: float, values: Mapping[str, float | None]) -> None:
        """Writes the values of a step; those that are not finite are left out.

        Raises:
            OSError: The library refuses.
        """
        finite = {name: value for name, value in values.items() if value is not None}
        with _library():
            self._run.log(finite, step=step)

    def close(self, failed: bool = False) -> None:
        """Ends the run, as finished or as failed. May be called twice.

        Raises:
            OSError: The library refuses.
        """
        with _library():
            self._run.finish(exit_code=int(failed))


@contextmanager
def _library() -> Iterator[None]:
    """Whatever the library raises, as an OSError.

    Its work is done by a process of its own, which may be gone; what then comes up is no error of
    a kind that it documents.
    """
    try:
        yield
    except Exception as error:
        raise OSError(f"{type(error).__name__}: {error}") from error
