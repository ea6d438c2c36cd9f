# SPDX-License-Identifier: Apache-2.0
"""A run's roles on Ray: ranks and engines in reserved places, this process telling them what to do.

Whatever ends the run, the Ray actors end with it, and so does Ray where it was started for the run.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cluster.ray_generator import RayGenerator
from rlrun.cluster.ray_learner import RayLearner
from rlrun.cluster.ray_pool import EnginePool
from rlrun.cluster.ray_runtime import Runtime
from rlrun.config.schema import RunConfig
from rlrun.interfaces import Generator, RunningCluster
from rlrun.rendering.renderer import Renderer

if TYPE_CHECKING:
    from rlrun.cluster.ray import RayCluster


class RayRoles(RunningCluster):
    """Ranks and engines as Ray actors."""

    learner: RayLearner

    def __init__(self, settings: RayCluster, config: RunConfig, folder: Path) -> None:
        """See ``Cluster.start``."""
        self._settings, self._config, self._folder = settings, config, folder
        self.generator_share = settings.num_engines / (
            settings.num_engines + settings.num_learner_ranks
        )
        self._runtime = Runtime(settings)
        self.ray_address = self._runtime.address
        try:
            self.learner = RayLearner(self._runtime, config, folder)
        except BaseException:
            self._runtime.close()
            raise

    async def start_generator(self, renderer: Renderer, say: Callable[[str], None]) -> Generator:
        """See ``RunningCluster.start_generator``; each engine makes its own renderer."""
        say(f"on Ray: {self._settings.demand.in_words()}")
        pool = EnginePool(self._runtime, self._config, self._folder)
        try:
            await pool.open()
        except BaseException:
            await pool.close()
            raise
        return RayGenerator(pool, self.learner.put_weights, self._config.grpo.concurrent)

    def close(self) -> None:
        """See ``RunningCluster.close``."""
        self.learner.close()
        self._runtime.close()
