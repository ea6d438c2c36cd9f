# SPDX-License-Identifier: Apache-2.0
"""Low-rank adapters: y = W x + (alpha / rank) B A x with W frozen (LoRA, arXiv 2106.09685).

The layers are peft's and sit inside the model, which keeps its class: whoever uses the model, the
generator included, uses it with the adapter. On disk an adapter is a folder in peft's format.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from rlrun.checkpoint.training_state import load_json, load_tensors, save_json, save_tensors
from rlrun.config.schema import Policy
from rlrun.errors import StorageError
from rlrun.learner.lora_targets import lora_error, require_peft, target_names
from rlrun.learner.sharding import full_tensors, load_full
from rlrun.models.embedded import EMBEDDED
from rlrun.models.resolve import resolve_model

if TYPE_CHECKING:
    from peft import LoraConfig
    from peft.tuners.lora import LoraLayer

NAME = "default"
"""What peft calls the adapter within the model; in files it has no name."""

WEIGHTS = "adapter_model.safetensors"
CONFIG = "adapter_config.json"
BASE = "base_weights.json"
"""Tells the model's own weights, which are not in the folder, from others."""

_PREFIX = "base_model.model."


class Adapter:
    """The adapter of a model: how it is switched off, stored, and made part of the weights."""

    def __init__(self, model: PreTrainedModel, policy: Policy) -> None:
        """Puts an adapter that changes nothing yet (B = 0) into the model and freezes all else.

        Args:
            model: As loaded, on its device, not sharded. It is changed in place.
            policy: ``lora`` says what kind of adapter; ``model`` is its base's name in files.

        Raises:
            ConfigError: peft is missing, or a target is not a linear layer of the model.
        """
        require_peft()
        from peft import LoraConfig, inject_adapter_in_model

        settings = policy.lora
        self.model = model
        self._base = {"checksum": weights_checksum(model)}
        self._config = LoraConfig(
            r=settings.rank,
            lora_alpha=settings.alpha,
            target_modules=target_names(model, settings),
            lora_dropout=0.0,
            bias="none",
            task_type="CAUSAL_LM",
            base_model_name_or_path=_base_name(policy.model),
        )
        try:
            inject_adapter_in_model(self._config, model, NAME)
        except ValueError as error:
            raise lora_error(
                "policy.lora.target_modules", f"peft refuses: {error}", "Name other layers"
            ) from error
        self._initialize(settings.seed)

    @torch.no_grad()
    def _initialize(self, seed: int) -> None:
        """A as peft draws it, uniform within 1 / sqrt(inputs), but of a seed of its own; B = 0.

        Every rank must begin with the same A, on whatever device and whatever was drawn before.
        """
        random = torch.Generator().manual_seed(seed)
        for name, parameter in self.parameters().items():
            drawn = torch.zeros(parameter.shape)
            if ".lora_A." in name:
                nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=random)
            parameter.copy_(drawn)

    def _layers(self) -> Iterator[tuple[str, LoraLayer]]:
        from peft.tuners.lora import LoraLayer

        for name, module in list(self.model.named_modules()):
            if isinstance(module, LoraLayer):
                yield name, module

    @contextmanager
    def off(self) -> Iterator[None]:
        """Within it the model is the one that training started from.

        The adapter is scaled by 0, as peft's own switch would also stop its gradients, which
        sharded parameters must not have happen to them.
        """
        self._scale(0.0)
        try:
            yield
        finally:
            self._scale(1.0)

    def _scale(self, factor: float) -> None:
        for _, layer in self._layers():
            layer.set_scale(NAME, factor)

    def parameters(self) -> dict[str, Tensor]:
        """What is trained, by name in the model; sharded where the model is."""
        return {name: p for name, p in self.model.named_parameters() if p.requires_grad}

    def save(self, folder: Path, values: Mapping[str, Tensor]) -> None:
        """Writes a folder in peft's format.

        Args:
            folder: Made if needed.
            values: Whole tensors of all ``parameters()``.

        Raises:
            StorageError: It cannot be written.
        """
        folder.mkdir(parents=True, exist_ok=True)
        save_tensors(folder / WEIGHTS, {_name_in_file(name): v for name, v in values.items()})
        save_json(folder / CONFIG, _plain(self._config))
        save_json(folder / BASE, self._base)

    def restore(self, folder: Path) -> None:
        """Gives the adapter the bits that ``save`` wrote.

        Raises:
            StorageError: It belongs to other weights, or is of another kind.
        """
        self._check_belongs(folder)
        parameters, values = self.parameters(), load_tensors(folder / WEIGHTS)
        names = {_name_in_file(name): name for name in parameters}
        shapes = {_name_in_file(name): p.shape for name, p in parameters.items()}
        if shapes != {name: value.shape for name, value in values.items()}:
            different = sorted(shapes.keys() ^ values.keys()) or "their shapes differ"
            raise StorageError(
                str(folder / WEIGHTS),
                f"the adapter does not fit policy.lora ({different})",
                "Use the policy.lora settings of the run",
            )
        load_full(parameters, ((names[name], value) for name, value in values.items()))

    def _check_belongs(self, folder: Path) -> None:
        if load_json(folder / BASE) != self._base:
            raise StorageError(
                str(folder),
                f"the weights of {self._config.base_model_name_or_path} are not those that the "
                "adapter was trained on",
                "Restore the model that the run was started with",
            )
        saved, ours = load_json(folder / CONFIG), _plain(self._config)
        for key in ("r", "lora_alpha"):
            if saved[key] != ours[key]:
                raise StorageError(
                    str(folder / CONFIG),
                    f"{key} is {saved[key]}, policy.lora says {ours[key]}",
                    "Use the policy.lora settings of the run",
                )

    @torch.no_grad()
    def merged_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Whole tensors of the plain model with the adapter added; the model stays as it is."""
        layers = dict(self._layers())
        own = {name for name, _ in self.model.named_parameters()}
        own |= {name for name, _ in self.model.named_buffers()}
        state = self.model.state_dict(keep_vars=True)
        added = dict(full_tensors({n: t for n, t in state.items() if ".lora_" in n}))
        plain = {n: t for n, t in state.items() if n in own and ".lora_" not in n}
        for name, tensor in full_tensors(plain):
            before, found, leaf = name.rpartition(".base_layer.")
            if not found or leaf != "weight":
                yield name.replace(".base_layer.", "."), tensor
                continue
            a = added[f"{before}.lora_A.{NAME}.weight"]
            b = added[f"{before}.lora_B.{NAME}.weight"]
            yield f"{before}.{leaf}", tensor + (b @ a) * layers[before].scaling[NAME]

    @torch.no_grad()
    def merge(self) -> None:
        """Adds the adapter to the weights; the model is then a plain one, without peft's layers.

        Only for a model that is not sharded. The adapter must not be used afterwards.
        """
        for name, layer in self._layers():
            layer.merge()
            self.model.set_submodule(name, layer.get_base_layer())
        del self.model.peft_config


def weights_checksum(model: nn.Module) -> str:
    """SHA-256 of names, shapes and sums of all float32 parameters, sums as exact integers.

    Not proof against forgery: it tells one model, or one revision of it, from another at the speed
    of reading the weights once.
    """
    digest = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        total = int(parameter.detach().view(torch.int32).sum(dtype=torch.int64))
        digest.update(f"{name} {tuple(parameter.shape)} {total}\n".encode())
    return digest.hexdigest()


def _base_name(model: str) -> str:
    """The base as others find it: a name of the hub stays one, a folder becomes absolute."""
    if model in EMBEDDED or Path(model).expanduser().is_dir():
        return str(Path(resolve_model(model)).absolute())
    return model


def _name_in_file(name: str) -> str:
    return _PREFIX + name.replace(f".{NAME}.", ".")


def _plain(config: LoraConfig) -> dict[str, Any]:
    """A configuration as JSON, for inference, sets in a fixed order."""
    fields = config.to_dict() | {"inference_mode": True}
    return {k: sorted(v) if isinstance(v, set) else v for k, v in fields.items()}
