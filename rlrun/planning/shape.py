# SPDX-License-Identifier: Apache-2.0
"""The shape of a model as far as memory and time depend on it, from its configuration alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from rlrun.config.schema import Policy
from rlrun.errors import DataError, RlrunError
from rlrun.learner.lora_targets import adapter_size
from rlrun.learner.sharding import decoder_layers
from rlrun.models.resolve import read_model_config, resolve_model, shards_of

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
    except Exception as error:
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
        DataError: transformers has no causal language model for the configuration, or the weights
            are of another one.
        ConfigError: A target of the adapters is no layer of the model, or peft is missing.
    """
    from transformers import AutoModelForCausalLM

    where = f"policy.model={policy.model}"
    try:
        with torch.device("meta"):
            model: PreTrainedModel = AutoModelForCausalLM.from_config(config)
        return _measured(policy, config, model)
    except RlrunError:
        raise
    # Whatever is wrong with the configuration, the libraries fail in the line that meets it.
    except Exception as error:
        why = (str(error).strip() or type(error).__name__).splitlines()[0]
        what = f"cannot be built from its config.json: {type(error).__name__}: {why}"
        raise DataError(where, what, "Choose another, or correct its config.json") from error


def check_weights(policy: Policy, config: PretrainedConfig) -> None:
    """Compares the shapes that the weights have with those that config.json gives them.

    Weights under names that the model does not have itself are not compared.

    Raises:
        DataError: One differs, so that the model could not be loaded.
    """
    from safetensors import safe_open
    from transformers import AutoModelForCausalLM

    folder = Path(resolve_model(policy.model))
    if shards_of(folder) is not None:
        return
    with torch.device("meta"):
        own = AutoModelForCausalLM.from_config(config).state_dict()
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="numpy") as file:
            for name in file.keys():  # it is no mapping
                shape = list(file.get_slice(name).get_shape())
                if name in own and shape != list(own[name].shape):
                    what = f"{name} is {shape}, and by config.json {list(own[name].shape)}"
                    remedy = "Restore the folder, or save the model anew with save_pretrained"
                    raise DataError(str(path), what, remedy)


def _measured(policy: Policy, config: PretrainedConfig, model: PreTrainedModel) -> Shape:
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
