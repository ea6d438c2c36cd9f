# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model get a low-rank adapter, and how large it will be."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn
from transformers import PreTrainedModel

from rlrun.config.schema import ALL_LINEAR, Lora
from rlrun.errors import ConfigError, Problem
from rlrun.learner.mixture import routers
from rlrun.learner.model import body


def require_peft() -> None:
    """Refuses to go on without peft.

    Raises:
        ConfigError: It is not installed.
    """
    try:
        import peft  # noqa: F401 (whether it can be imported is all that is asked)
    except ImportError as error:
        raise lora_error(
            "policy.lora.enabled",
            f"adapters need peft, which cannot be imported ({error})",
            "Run pip install 'rlrun[lora]', or set policy.lora.enabled=false",
        ) from error


def linear_layers(model: PreTrainedModel) -> list[str]:
    """Names of the layers that can get an adapter: the linear ones before the output layer.

    Routers are none of them: an adapter would train one that is frozen, and some return a tuple.
    """
    inside = {id(module) for module in body(model).modules()}
    inside -= {id(part) for router in routers(model) for part in router.modules()}
    return [
        name
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside
    ]


def adapter_size(model: PreTrainedModel, settings: Lora) -> int:
    """Parameters that the adapter of a model will have; the model may be on the meta device.

    Raises:
        ConfigError: peft is missing, or a target is not a linear layer of the model.
    """
    require_peft()
    targets = target_names(model, settings)
    layers = {name: model.get_submodule(name) for name in linear_layers(model)}
    return sum(
        settings.rank * sum(layer.weight.shape)
        for name, layer in layers.items()
        if isinstance(layer, nn.Linear) and _matches(name, targets)
    )


def target_names(model: PreTrainedModel, settings: Lora) -> list[str]:
    """Ends of layer names, as peft matches them; none that matches nothing.

    Raises:
        ConfigError: There is no such linear layer.
    """
    layers = linear_layers(model)
    ends = sorted({name.rpartition(".")[2] for name in layers})
    if not ends:
        what = f"{type(model).__name__} has no linear layers that could get an adapter"
        raise lora_error("policy.lora.enabled", what, "Train all weights")
    if settings.target_modules == ALL_LINEAR:
        return ends
    unknown = [
        target
        for target in settings.target_modules
        if not any(_matches(name, [target]) for name in layers)
    ]
    if unknown:
        raise lora_error(
            "policy.lora.target_modules",
            f"{type(model).__name__} has no linear layer {', '.join(unknown)}",
            f"Choose among {', '.join(ends)}, or write {ALL_LINEAR}",
        )
    return list(settings.target_modules)


def _matches(name: str, targets: Sequence[str]) -> bool:
    return any(name == target or name.endswith(f".{target}") for target in targets)


def lora_error(key: str, what: str, remedy: str) -> ConfigError:
    """A setting of an adapter that cannot be."""
    return ConfigError([Problem(key, what, remedy, (key,))])
