# SPDX-License-Identifier: Apache-2.0
"""The shape of a model as far as memory and time depend on it, from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlrun.config.schema import Policy
from rlrun.errors import DataError
from rlrun.learner.lora import adapter_size
from rlrun.learner.sharding import decoder_layers
from rlrun.models import read_model_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True, slots=True)
class Layer:
    """One repeated block.

    Attributes:
        parameters: All of them.
        active: Those that take part in a token.
        kv: Elements per token of its cache; 0 without attention.
        attended: Multiplications per token and token attended to; 0 without attention.
        state: Elements per sequence of its recurrent state, kept in float32; 0 without one.
    """

    parameters: int
    active: int
    kv: int
    attended: int
    state: int


@dataclass(frozen=True, slots=True)
class Shape:
    """A model.

    Attributes:
        name: Its class in transformers.
        parameters: All of them, tied ones once.
        adapters: Adapter parameters that are trained instead of these; 0 if these are.
        hidden: Width of the hidden state.
        vocabulary: Rows of the head.
        layers: The repeated blocks.
    """

    name: str
    parameters: int
    adapters: int
    hidden: int
    vocabulary: int
    layers: tuple[Layer, ...]

    @property
    def trained(self) -> int:
        """Parameters that have a gradient."""
        return self.adapters or self.parameters

    @property
    def root(self) -> int:
        """Parameters outside of the layers: embeddings, head, last norm."""
        return self.parameters - sum(layer.parameters for layer in self.layers)

    @property
    def largest_layer(self) -> int:
        """Parameters of the largest block."""
        return max((layer.parameters for layer in self.layers), default=0)

    @property
    def active(self) -> int:
        """Parameters that a token meets in a matrix product; an embedding is looked up."""
        return sum(layer.active for layer in self.layers) + self.vocabulary * self.hidden

    @property
    def is_recurrent(self) -> bool:
        """Whether a layer carries a state from token to token."""
        return any(layer.state for layer in self.layers)

    @property
    def kv_per_token(self) -> int:
        """Elements of the cache per token, over all layers."""
        return sum(layer.kv for layer in self.layers)

    @property
    def state_per_sequence(self) -> int:
        """Elements of the recurrent state per sequence, over all layers."""
        return sum(layer.state for layer in self.layers)


def config_of(policy: Policy) -> PretrainedConfig:
    """The model's configuration: what the recipe says of it, or that of its folder.

    Raises:
        DataError: The recipe's words make no configuration, or there is no such model.
    """
    from transformers import AutoConfig

    fields = dict(policy.architecture)
    if not fields:
        return read_model_config(policy.model)
    kind = str(fields.pop("model_type", ""))
    try:
        config: PretrainedConfig = AutoConfig.for_model(kind, **fields)
    # A configuration checks itself by whatever means its author chose.
    except Exception as error:  # noqa: BLE001
        what = f"makes no configuration: {(str(error) or type(error).__name__).splitlines()[0]}"
        remedy = "Copy the values of the model's config.json, model_type among them"
        raise DataError("policy.architecture", what, remedy) from error
    return config


def contradictions(policy: Policy, found: PretrainedConfig) -> list[str]:
    """Where ``policy.architecture`` and the model's own configuration differ."""
    said: Mapping[str, Any] = policy.architecture
    own = found.get_text_config(decoder=True).to_dict() | {"model_type": found.model_type}
    return [
        f"{name} is {value!r} in policy.architecture and {own[name]!r} in the model"
        for name, value in said.items()
        if name in own and own[name] != value
    ]


def shape_of(policy: Policy, config: PretrainedConfig) -> Shape:
    """Builds the model without memory and measures it.

    Raises:
        DataError: transformers has no causal language model for the configuration.
        ConfigError: A target of the adapters is no layer of the model, or peft is missing.
    """
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
    except (ValueError, TypeError, RuntimeError, KeyError) as error:
        what = f"cannot be built from its config.json: {str(error).splitlines()[0]}"
        raise DataError(f"policy.model={policy.model}", what, "Choose another") from error
    text = config.get_text_config(decoder=True)
    return Shape(
        name=type(model).__name__,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        adapters=adapter_size(model, policy.lora) if policy.lora.enabled else 0,
        hidden=text.hidden_size,
        vocabulary=text.vocab_size,
        layers=tuple(_layer(block, text.to_dict()) for block in decoder_layers(model)),
    )


def _layer(block: nn.Module, fields: Mapping[str, Any]) -> Layer:
    """One block; what it holds is told by the names of its parameters."""
    parameters = idle = kv = attended = state = 0
    for name, parameter in block.named_parameters():
        parameters += parameter.numel()
        last = name.removesuffix(".weight").rpartition(".")[2]
        if parameter.dim() == 3 and "expert" in name:
            experts = parameter.shape[0]
            used = min(experts, fields.get("num_experts_per_tok") or experts)
            idle += parameter.numel() // experts * (experts - used)
        elif last in ("k_proj", "v_proj"):
            kv += parameter.shape[0]
        elif last == "q_proj":
            attended += 2 * parameter.shape[0]
        elif last == "A_log":
            channels = fields["mamba_num_heads"] * fields["mamba_head_dim"]
            state += channels * fields["ssm_state_size"]
        elif "conv1d" in name and parameter.dim() == 3:
            state += parameter.numel()
    return Layer(parameters, parameters - idle, kv, attended, state)
