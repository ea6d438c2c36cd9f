# SPDX-License-Identifier: Apache-2.0
"""How weights get from the learner to vLLM engines: what all ways share, and the choice."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from rlrun.console.counted import counted
from rlrun.errors import ConfigError, Problem

if TYPE_CHECKING:
    from rlrun.generation.vllm_engine import Engine

log = logging.getLogger(__name__)


class RefitKind(StrEnum):
    """How weights reach an engine."""

    AUTO = "auto"
    """What fits the devices."""
    SHARED_MEMORY = "shared_memory"
    """Learner and engines on CPUs of one machine."""
    IPC = "ipc"
    """Learner and engine on the same GPU, one after the other."""
    NCCL = "nccl"
    """Learner and engines on GPUs of their own."""


class Transfer(ABC):
    """Brings one version of the weights after the other to any number of engines.

    Attributes:
        colocated: Learner and engine share a GPU, so the engine sleeps while the learner trains.
    """

    colocated = False

    @abstractmethod
    def engine_args(self, index: int) -> Mapping[str, Any]:
        """Arguments that the engine of an index is started with."""

    @abstractmethod
    async def connect(self, engine: Engine) -> None:
        """Prepares an engine that has just been started."""

    @abstractmethod
    def publish(self) -> None:
        """Takes the learner's present weights, for engines to be given until the next time."""

    @abstractmethod
    async def load(self, engine: Engine, version: int) -> None:
        """Puts the published weights into a paused engine.

        Raises:
            GenerationError: They did not arrive.
        """

    @abstractmethod
    def close(self) -> None:
        """Frees what it holds. May be called twice."""


def choose_refit(
    kind: RefitKind,
    *,
    on_gpu: bool,
    gpus: int,
    num_engines: int,
    tensor_parallel_size: int,
    concurrent: bool,
) -> RefitKind:
    """The way that fits the devices, or the given one if it does.

    Args:
        kind: As configured.
        on_gpu: The learner is on a GPU.
        gpus: GPUs of this machine; the learner takes the first.
        num_engines: Engines.
        tensor_parallel_size: GPUs of each.
        concurrent: The learner trains while the engines generate.

    Raises:
        ConfigError: It does not fit.
    """
    needed = num_engines * tensor_parallel_size
    if not on_gpu:
        if kind in (RefitKind.AUTO, RefitKind.SHARED_MEMORY):
            return RefitKind.SHARED_MEMORY
        what = f"generation.refit={kind} needs GPUs, and the learner is on the CPU"
        raise _refused(what, "Write generation.refit=auto")
    engines = f"{counted(num_engines, 'engine')} of {counted(tensor_parallel_size, 'GPU')}"
    apart = gpus > needed
    alone = needed == 1 and not concurrent
    if kind is RefitKind.SHARED_MEMORY:
        what = "generation.refit=shared_memory is for CPUs, and the learner is on a GPU"
        raise _refused(what, "Write generation.refit=auto, or cluster.device=cpu")
    if kind is RefitKind.NCCL or (kind is RefitKind.AUTO and apart):
        if apart:
            return RefitKind.NCCL
        what = f"{engines} and the learner need {needed + 1} GPUs, and there are {gpus}"
        raise _refused(what, "Lower generation.num_engines or tensor_parallel_size")
    if alone:
        return RefitKind.IPC
    what = f"with {counted(gpus, 'GPU')} the learner and {engines} would share them" + (
        ", and both at the same time" if concurrent else ""
    )
    remedy = (
        f"Sharing works for one engine on one GPU in a synchronous run; give {needed + 1} GPUs, of "
        "which the learner takes the first"
    )
    raise _refused(what, remedy)


def _refused(what: str, remedy: str) -> ConfigError:
    key = "generation.refit"
    return ConfigError([Problem(key, what, remedy, (key,))])
