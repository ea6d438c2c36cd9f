# SPDX-License-Identifier: Apache-2.0
"""Weights from shared memory into a model that keeps them in another layout than it loads."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from rlrun.refit.shared_memory import SharedWeights

receiver = pytest.importorskip("rlrun.refit.vllm_receiver", exc_type=ImportError)


def turned_model() -> nn.Module:
    """A model as vLLM loads it on a GPU, whose kernel wants its weight turned round."""
    from vllm.model_executor.layers.quantization.base_config import QuantizeMethodBase
    from vllm.model_executor.model_loader.reload import record_metadata_for_reloading
    from vllm.model_executor.model_loader.weight_utils import default_weight_loader

    class Turned(QuantizeMethodBase):
        def create_weights(self, layer: nn.Module, *args: object, **kwargs: object) -> None:
            """They are there."""

        def apply(self, layer: nn.Module, *args: Tensor, **kwargs: Tensor) -> Tensor:
            return args[0] @ layer.weight

        def process_weights_after_loading(self, layer: nn.Module) -> None:
            weight = layer.weight.data.t().contiguous()
            layer.weight = nn.Parameter(weight, requires_grad=False)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.norm = nn.Linear(3, 2, bias=False), nn.LayerNorm(2, bias=False)
            self.layer.quant_method = Turned()
            self.embeddings, self.head = nn.Embedding(4, 2), nn.Linear(2, 4, bias=False)
            self.head.weight = self.embeddings.weight

        def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> set[str]:
            parameters, loaded = dict(self.named_parameters()), set()
            for name, value in weights:
                parameter = parameters[name]
                load = getattr(parameter, "weight_loader", default_weight_loader)
                load(parameter, value)
                loaded.add(name)
            return loaded

    model = Model()
    record_metadata_for_reloading(model)
    model.layer.quant_method.process_weights_after_loading(model.layer)
    return model


def refit(model: nn.Module, weights: dict[str, Tensor]) -> None:
    config = SimpleNamespace(
        parallel_config=None, model_config=SimpleNamespace(dtype=torch.float32)
    )
    engine = receiver.SharedMemoryEngine(None, config, torch.device("cpu"), model)
    shared = SharedWeights(lambda: iter(weights.items()))
    shared.publish()
    try:
        engine.start_weight_update()
        engine.receive_weights(receiver.UpdateInfo(shared.handle()))
        engine.finish_weight_update()
    finally:
        shared.close()


def test_a_layout_of_the_engines_own_is_made_anew_from_what_arrives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver, "loads_in_place", lambda: False)
    model = turned_model()
    place = model.layer.weight.data_ptr()
    for scale in (1.0, 2.0):
        new = {
            "layer.weight": scale * torch.arange(6.0).view(2, 3),
            "norm.weight": torch.ones(2),
            "embeddings.weight": scale * torch.ones(4, 2),
        }
        refit(model, new)
        assert torch.equal(model.layer.weight, new["layer.weight"].t())
        assert torch.equal(model.head.weight, new["embeddings.weight"])
    # Captured graphs compute from where it was.
    assert model.layer.weight.data_ptr() == place


def test_a_parameter_without_a_value_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receiver, "loads_in_place", lambda: False)
    with pytest.raises(RuntimeError, match=r"1 parameter .* such as norm.weight"):
        refit(
            turned_model(),
            {"layer.weight": torch.ones(2, 3), "embeddings.weight": torch.ones(4, 2)},
        )
