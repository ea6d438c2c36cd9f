# SPDX-License-Identifier: Apache-2.0
"""refit=ipc: learner and engine share a GPU, and with it the memory that weights are copied from.

While the learner trains, the engine sleeps: its weights wait in the machine's memory, its cache is
given up.
"""

from __future__ import annotations

import asyncio
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory
from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo
from vllm.distributed.weight_transfer.packed_tensor import DEFAULT_PACKED_BUFFER_SIZE_BYTES

from rlrun.interfaces import Weights
from rlrun.refit.transfer import Transfer
from rlrun.refit.vllm_client import EngineClient, LearnerSource

if TYPE_CHECKING:
    from vllm.distributed.weight_transfer.base import TrainerWeightTransferEngine

    from rlrun.generation.vllm_engine import Engine


class IpcTransfer(Transfer):
    """Hands the engine's worker what it needs to see the learner's memory.

    Args:
        weights: The learner's.
    """

    colocated = True

    def __init__(self, weights: Weights) -> None:
        self._source = LearnerSource(weights)
        self._sender: TrainerWeightTransferEngine | None = None
        # Handles of GPU memory hold types of torch, which vLLM sends between its own processes in
        # no other way; nothing from outside of this run arrives there.
        os.environ["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"

    def engine_args(self, index: int) -> Mapping[str, Any]:
        """The learner's GPU, and the ability to sleep."""
        return {
            "weight_transfer_config": {"backend": "ipc"},
            "device_ids": [0],
            "enable_sleep_mode": True,
        }

    async def connect(self, engine: Engine) -> None:
        """Tells the worker how weights will be packed: in pieces, to need little memory."""
        self._sender = await asyncio.to_thread(
            WeightTransferTrainerFactory.trainer_init,
            init_info(self._source),
            client=EngineClient(engine, asyncio.get_running_loop()),
            source=self._source,
        )

    def publish(self) -> None:
        """Gives back what training no longer needs, so that the engine can wake up."""
        torch.cuda.empty_cache()

    async def load(self, engine: Engine, version: int) -> None:
        """Has the worker copy the learner's weights."""
        assert self._sender is not None, "an engine is connected before it is loaded"
        await asyncio.to_thread(self._sender.send_weights)
        await engine.llm.update_weight_version(str(version))

    def close(self) -> None:
        """Nothing is kept."""
        self._sender = None


def init_info(source: LearnerSource) -> IPCTrainerInitInfo:
    """One learner; weights come in pieces, each of which must hold the largest tensor."""
    sizes = [math.prod(one.shape) * one.dtype.itemsize for one in source.metadata()]
    piece = max([DEFAULT_PACKED_BUFFER_SIZE_BYTES, *sizes])
    return IPCTrainerInitInfo(rank=0, packed=True, packed_buffer_size_bytes=piece)
