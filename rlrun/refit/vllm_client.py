# SPDX-License-Identifier: Apache-2.0
"""What vLLM's own trainer-side transfer engines need: a way to call an engine, and the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import TYPE_CHECKING, Any

from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    WeightSource,
    WeightTransferInitRequest,
    WeightTransferUpdateRequest,
)

from rlrun.interfaces import Weights

if TYPE_CHECKING:
    from rlrun.generation.vllm_engine import Engine

CALL_TIMEOUT_S = 600.0


class EngineClient:
    """The weight-sync client of vLLM for an engine of this process.

    Its methods block; they are called from a thread beside the engine's event loop.

    Args:
        engine: To be called.
        loop: That the engine lives on.
    """

    def __init__(self, engine: Engine, loop: asyncio.AbstractEventLoop) -> None:
        self._engine, self._loop = engine, loop

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        """Has the engine's workers meet the trainer."""
        request = WeightTransferInitRequest(init_info=init_info)
        self._call(self._engine.llm.init_weight_transfer_engine(request))

    def start_weight_update(self) -> None:
        """Begins an update."""
        self._call(self._engine.llm.start_weight_update())

    def update_weights(self, update_info: dict[str, Any] | list[dict[str, Any]]) -> None:
        """Has the workers receive weights."""
        request = WeightTransferUpdateRequest(update_info=update_info)
        self._call(self._engine.llm.update_weights(request))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        """Ends an update."""
        self._call(self._engine.llm.finish_weight_update(weight_version))

    def _call(self, call: Coroutine[Any, Any, None]) -> None:
        asyncio.run_coroutine_threadsafe(call, self._loop).result(CALL_TIMEOUT_S)


class LearnerSource(WeightSource):
    """The learner's weights, read anew for every update.

    Args:
        weights: See ``interfaces.Weights``.
    """

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self._metadata: list[ParamMeta] | None = None

    def metadata(self) -> list[ParamMeta]:
        """Names, types and shapes, which do not change."""
        if self._metadata is None:
            self._metadata = [
                ParamMeta(name, tensor.dtype, tuple(tensor.shape))
                for name, tensor in self._weights()
            ]
        return self._metadata

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        """The present weights, in the order of ``metadata``."""
        for name, tensor in self._weights():
            yield name, tensor.detach().contiguous()
