# SPDX-License-Identifier: Apache-2.0
"""refit=shared_memory: engines on CPUs of the learner's machine load from a block both can see."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vllm.distributed.weight_transfer.base import WeightTransferUpdateRequest

from rlrun.interfaces import Weights
from rlrun.refit.shared_memory import SharedWeights
from rlrun.refit.transfer import Transfer
from rlrun.refit.vllm_receiver import BACKEND

if TYPE_CHECKING:
    from rlrun.generation.vllm_engine import Engine


class SharedMemoryTransfer(Transfer):
    """One block for all engines; an engine that is started again finds its weights there."""

    def __init__(self, weights: Weights) -> None:
        """Args: ``weights`` are the learner's."""
        self.shared = SharedWeights(weights)

    def engine_args(self, index: int) -> Mapping[str, Any]:
        """Names the receiver in rlrun/refit/vllm_receiver.py."""
        return {"weight_transfer_config": {"backend": BACKEND}}

    async def connect(self, engine: Engine) -> None:
        """Nothing to do."""

    def publish(self) -> None:
        """Copies the weights into the block."""
        self.shared.publish()

    async def load(self, engine: Engine, version: int) -> None:
        """Has the engine's workers copy them out again."""
        request = WeightTransferUpdateRequest(update_info={"handle": self.shared.handle()})
        await engine.llm.start_weight_update()
        await engine.llm.update_weights(request)
        await engine.llm.finish_weight_update(weight_version=str(version))

    def close(self) -> None:
        """Gives up the block."""
        self.shared.close()
