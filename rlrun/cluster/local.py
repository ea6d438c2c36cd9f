# SPDX-License-Identifier: Apache-2.0
"""cluster=local: the learner and generation in this process, on one device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.interfaces import Cluster, Generator, RunningCluster, component
from rlrun.process.compute import compute_blocking

if TYPE_CHECKING:
    from rlrun.config.schema import RunConfig
    from rlrun.learner.learner import Learner
    from rlrun.rendering.renderer import Renderer


@component("cluster/local")
@dataclass(kw_only=True, slots=True)
class LocalCluster(Cluster):
    """One process; no Ray."""

    def start(self, config: RunConfig, folder: Path) -> RunningCluster:
        """Loads the policy."""
        from rlrun.derived import generator_share, sampling_of
        from rlrun.learner.learner import Learner
        from rlrun.process.machine import cores_to_take, device_of

        sampling = sampling_of(config, training=True)
        learner = compute_blocking(Learner, config.policy, config.loss, sampling, device_of(config))
        return LocalRoles(learner, config, folder, generator_share(config, cores_to_take()))


class LocalRoles(RunningCluster):
    """A learner in this process, and a generator beside it."""

    learner: Learner

    def __init__(
        self, learner: Learner, config: RunConfig, folder: Path, generator_share: float
    ) -> None:
        """Starts nothing."""
        self.learner, self.generator_share = learner, generator_share
        self._config, self._folder = config, folder

    async def start_generator(self, renderer: Renderer, say: Callable[[str], None]) -> Generator:
        """See ``RunningCluster.start_generator``."""
        from rlrun.derived import generator_inputs, thread_counts
        from rlrun.process.machine import cores_to_take

        inputs = generator_inputs(
            self._config,
            model=self.learner.model,
            weights=self.learner.weights,
            renderer=renderer,
            num_threads=thread_counts(self._config, cores_to_take())[1],
            folder=self._folder,
        )
        announcement = self._config.generation.announcement(inputs)
        if announcement:
            say(announcement)
        return await self._config.generation.start(inputs)

    def close(self) -> None:
        """Nothing was started."""
