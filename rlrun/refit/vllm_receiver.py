# SPDX-License-Identifier: Apache-2.0
"""refit=shared_memory, the engine's end: weights from a block of memory into vLLM's model.

On a CPU, where rlrun's engines keep weights as they are loaded, they are copied over in place. On a
GPU vLLM may hold them in another layout than it loads (experts, latent attention), so they go the
way that its own transfer engines take: a layer is loaded anew, converted, and copied over.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.platforms import current_platform

from rlrun.console.counted import counted
from rlrun.refit.shared_memory import read_weights

BACKEND = "rlrun_shared_memory"


def loads_in_place() -> bool:
    """Whether parameters are what the model computes from."""
    return bool(current_platform.is_cpu())


@dataclass
class NoInit(WeightTransferInitInfo):
    """Shared memory needs no rendezvous."""


@dataclass
class UpdateInfo(WeightTransferUpdateInfo):
    """One version of the weights.

    Attributes:
        handle: Of ``SharedWeights``.
    """

    handle: str


class SharedMemoryEngine(WeightTransferEngine[NoInit, UpdateInfo]):
    """Loads weights from shared memory over those of the model."""

    init_info_cls = NoInit
    update_info_cls = UpdateInfo

    def init_transfer_engine(self, init_info: NoInit) -> None:
        """Nothing to do."""

    def start_weight_update(self) -> None:
        """Makes the model ready to be loaded, unless that is done in place."""
        self._names = self._parameters()
        if not loads_in_place():
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        """Converts what has been loaded, unless that was done in place."""
        if not loads_in_place():
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)

    def receive_weights(self, update_info: UpdateInfo) -> None:
        """Loads every tensor, converted to the parameter's type.

        Raises:
            RuntimeError: A parameter got no value.
        """
        # A tied parameter has one name only before the model is made ready to be loaded, and those
        # that vLLM adds to a layer when it converts it are not there between that and the loading.
        names = self._names & self._parameters()
        with torch.no_grad():
            loaded = self.model.load_weights(read_weights(update_info.handle))
        # Some models do not say what they loaded; the probe after a refit finds gaps there.
        if loaded is not None and (missing := sorted(names - set(loaded))):
            without = counted(len(missing), "parameter")
            raise RuntimeError(f"{without} of the engine got no value, such as {missing[0]}")

    def _parameters(self) -> set[str]:
        return {name for name, _ in self.model.named_parameters()}

    def shutdown(self) -> None:
        """Nothing to do."""
