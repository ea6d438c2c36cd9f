# SPDX-License-Identifier: Apache-2.0
"""The slot cluster: where the learner and the generators run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.slots.registry import Checked

if TYPE_CHECKING:
    from rlrun.config.schema import RunConfig
    from rlrun.learner.handle import LearnerHandle
    from rlrun.rendering.renderer import Renderer
    from rlrun.slots.generation import Generator


class Precision(StrEnum):
    """Arithmetic of the learner's forward and backward pass; master weights are float32."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


class Device(StrEnum):
    """What tensors live on."""

    AUTO = "auto"
    """A GPU if there is one, the CPU otherwise."""
    CPU = "cpu"
    CUDA = "cuda"


@dataclass(kw_only=True, slots=True)
class Cluster(Checked, ABC):
    """Where the learner and the generators run."""

    device: Device

    def check_installed(self) -> None:
        """Called before data or a model is read.

        Raises:
            ConfigError: A package is missing that the variant needs.
        """

    @abstractmethod
    def start(self, config: RunConfig, folder: Path) -> RunningCluster:
        """Loads the policy where it is to be trained; may take a while.

        Args:
            config: The run, this being its cluster.
            folder: The run directory.

        Raises:
            ConfigError: There is less than the configuration asks for.
            EnvironmentDown: What is there cannot be had.
        """


class RunningCluster(ABC):
    """The roles of a run, wherever they are.

    Attributes:
        learner: Ready to compute.
        generator_share: Share of the machines that generates where learner and generator run at the
            same time.
        ray_address: Of the Ray cluster that they are on; None without one.
    """

    learner: LearnerHandle
    generator_share: float
    ray_address: str | None = None

    @abstractmethod
    async def start_generator(self, renderer: Renderer, say: Callable[[str], None]) -> Generator:
        """Starts what samples; to be closed before the cluster is.

        Args:
            renderer: Of the policy.
            say: Told before the start what will be started, if it takes a while.

        Raises:
            GenerationError: It does not start.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees everything that was started. May be called twice."""
