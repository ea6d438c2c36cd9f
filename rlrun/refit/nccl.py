# SPDX-License-Identifier: Apache-2.0
"""refit=nccl: the learner's GPU broadcasts to engines on GPUs of their own.

Each engine has a group with the learner, so that one that is started again meets it anew without
the others. vLLM's trainer engine does the broadcast; it blocks, hence the thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo
from vllm.utils.network_utils import get_open_port

from rlrun.interfaces import Weights
from rlrun.refit.transfer import Transfer
from rlrun.refit.vllm_client import EngineClient, LearnerSource

if TYPE_CHECKING:
    from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine

    from rlrun.generation.vllm_engine import Engine

ADDRESS = "127.0.0.1"
"""Learner and engines of cluster=local are on one machine."""


class NcclTransfer(Transfer):
    """Broadcasts to one engine after the other.

    Args:
        weights: The learner's.
        tensor_parallel_size: GPUs of each engine.
    """

    def __init__(self, weights: Weights, tensor_parallel_size: int) -> None:
        self._source = LearnerSource(weights)
        self._size = tensor_parallel_size
        self._senders: dict[str, TrainerWeightTransferEngine] = {}

    def engine_args(self, index: int) -> Mapping[str, Any]:
        """The learner has GPU 0; engines follow it."""
        first = 1 + index * self._size
        return {
            "weight_transfer_config": {"backend": "nccl"},
            "device_ids": list(range(first, first + self._size)),
        }

    async def connect(self, engine: Engine) -> None:
        """Makes the group of the learner and the engine's workers."""
        old = self._senders.pop(engine.name, None)
        if old is not None:
            # It gives up a broadcast that the lost engine never ended, and may wait for that.
            await asyncio.to_thread(old.shutdown)
        self._senders[engine.name] = await asyncio.to_thread(
            WeightTransferTrainerFactory.trainer_init,
            init_info(self._size, get_open_port()),
            client=EngineClient(engine, asyncio.get_running_loop()),
            source=self._source,
        )

    def publish(self) -> None:
        """Nothing to do: the learner's weights are read while they are sent."""

    async def load(self, engine: Engine, version: int) -> None:
        """Broadcasts the learner's weights."""
        await asyncio.to_thread(self._senders[engine.name].send_weights)
        await engine.llm.update_weight_version(str(version))

    def close(self) -> None:
        """Gives up the groups."""
        while self._senders:
            self._senders.popitem()[1].shutdown()


def init_info(tensor_parallel_size: int, port: int) -> NCCLTrainerInitInfo:
    """The group of one learner and the workers of one engine."""
    return NCCLTrainerInitInfo(
        rank=0,
        master_address=ADDRESS,
        master_port=port,
        world_size=1 + tensor_parallel_size,
    )
