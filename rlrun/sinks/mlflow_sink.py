# SPDX-License-Identifier: Apache-2.0
"""Metrics to MLflow, by default into a database file in the run directory.

Every process of a run is a run of its own there, with the run directory as a tag. The only place
that knows the library.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlrun.config.schema import Mlflow
    from rlrun.run_dir.directory import RunDir

_FOREIGN = re.compile(r"[^\w\-. :/]")
_PER_CALL = 100
_LONGEST_VALUE = 500


class MlflowSink:
    """An MLflow run."""

    name = "mlflow"

    def __init__(self, run_dir: RunDir, settings: Mlflow) -> None:
        """Starts the run, in an experiment that is made if it does not exist.

        Args:
            run_dir: Names the run and, without a server, holds the database.
            settings: Where to, and the experiment.

        Raises:
            OSError: It cannot be started: no server, no room.
        """
        # The library announces each table of a new database.
        logging.getLogger("mlflow").setLevel(logging.WARNING)
        logging.getLogger("alembic").setLevel(logging.WARNING)
        from mlflow.entities import Metric, Param
        from mlflow.exceptions import MlflowException
        from mlflow.tracking import MlflowClient

        self._metric: Any = Metric
        self._errors: type[Exception] = MlflowException
        try:
            uri = settings.tracking_uri or f"sqlite:///{run_dir.root / 'mlflow.db'}"
            self._client: Any = MlflowClient(tracking_uri=uri)
            found = self._client.get_experiment_by_name(settings.experiment)
            experiment = (
                self._client.create_experiment(settings.experiment)
                if found is None
                else found.experiment_id
            )
            tags = {"rlrun.run_dir.directory": str(run_dir.root)}
            run = self._client.create_run(experiment, run_name=run_dir.root.name, tags=tags)
            self._id: str = run.info.run_id
            params = [
                Param(_FOREIGN.sub("_", key), origin["value"][:_LONGEST_VALUE])
                for key, origin in run_dir.read_origins().items()
            ]
            for start in range(0, len(params), _PER_CALL):
                self._client.log_batch(self._id, params=params[start : start + _PER_CALL])
        except self._errors as error:
            raise OSError(str(error)) from error
        self._ended = False

    def write(self, step: int, wall_time: float, values: Mapping[str, float | None]) -> None:
        """Writes the values of a step; those that are not finite are left out.

        Raises:
            OSError: The library refuses.
        """
        milliseconds = int(wall_time * 1000)
        metrics = [
            self._metric(_FOREIGN.sub("_", name), value, milliseconds, step)
            for name, value in values.items()
            if value is not None
        ]
        try:
            self._client.log_batch(self._id, metrics=metrics)
        except self._errors as error:
            raise OSError(str(error)) from error

    def close(self, failed: bool = False) -> None:
        """Ends the run, as finished or as failed. May be called twice.

        Raises:
            OSError: The library refuses.
        """
        if self._ended:
            return
        self._ended = True
        try:
            self._client.set_terminated(self._id, "FAILED" if failed else "FINISHED")
        except self._errors as error:
            raise OSError(str(error)) from error
