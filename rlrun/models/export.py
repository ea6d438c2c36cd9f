# SPDX-License-Identifier: Apache-2.0
"""``rlrun export``: a run's policy as a Hugging Face folder, complete or not there at all."""

from __future__ import annotations

import shutil
from pathlib import Path

import torch
from transformers import PreTrainedModel
from transformers.utils.logging import disable_progress_bar

from rlrun.atomic import fsync_dir, fsync_file, rename_durably, storage_error, temporary_name
from rlrun.checkpoint.training_state import library_writes, load_tensors, save_tensors
from rlrun.config.schema import RunConfig
from rlrun.console.console import Console
from rlrun.errors import ConfigError, Problem, StorageError
from rlrun.interfaces import Precision
from rlrun.learner import lora
from rlrun.learner.model import GENERATION, save_model
from rlrun.models.saved_policy import SavedPolicy, policy_of_run

DTYPES = {Precision.FLOAT32.value: torch.float32, Precision.BFLOAT16.value: torch.bfloat16}

_NOT_COPIED = (
    "*.safetensors",
    "*.safetensors.index.json",
    "config.json",
    GENERATION,
    lora.CONFIG,
    lora.BASE,
)
"""What is written anew or has no meaning elsewhere; all other files of policy/ (tokenizer and chat
template) are copied as they are."""


def export(
    root: Path,
    destination: Path,
    console: Console,
    *,
    step: int | None = None,
    merge: bool = True,
    dtype: str = Precision.FLOAT32.value,
) -> None:
    """Exports the policy of a checkpoint, after comparing all its files with its manifest.

    In float32 the weights are the learner's bits.

    Args:
        root: The run directory.
        destination: A folder that is made, or an empty one.
        console: Is told what was written.
        step: Of the checkpoint; None for the newest whole one.
        merge: With LoRA: whether the adapter is added to the weights; otherwise it is exported
            alone, in peft's format.
        dtype: Type of the weights, a key of DTYPES.

    Raises:
        ConfigError: The type is unknown, or there is no adapter to export.
        StorageError: The destination is not empty, the checkpoint is damaged, or the disk refuses.
    """
    disable_progress_bar()
    target = _dtype(dtype)
    destination = destination.absolute()
    _check_destination(destination)
    policy = policy_of_run(str(root), step=step)
    if not merge:
        _check_adapter(policy.config)
    temporary = temporary_name(destination)
    try:
        if temporary.exists():
            shutil.rmtree(temporary)
        temporary.mkdir(parents=True)
        write = _write_model if merge else _write_adapter
        what = write(policy, temporary, target)
        _copy_tokenizer(policy, temporary)
        _make_durable(temporary)
        rename_durably(temporary, destination)
    except OSError as error:
        raise storage_error(destination, "export to", error) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    console.say([f"exported step {policy.step} of {root} to {destination}: {what}, {dtype}"])


def _dtype(name: str) -> torch.dtype:
    if name not in DTYPES:
        what, remedy = f"there is no type {name!r}", f"The types are {', '.join(DTYPES)}"
        raise ConfigError([Problem("--dtype", what, remedy)])
    return DTYPES[name]


def _check_destination(destination: Path) -> None:
    try:
        if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
            raise StorageError(
                str(destination),
                "is there already and is not an empty folder",
                "Choose a folder that does not exist yet",
            )
    except OSError as error:
        raise storage_error(destination, "look at", error) from error


def _check_adapter(config: RunConfig) -> None:
    if not config.policy.lora.enabled:
        what = "the run has no adapter: it trains all weights (policy.lora.enabled=false)"
        raise ConfigError([Problem("--adapter", what, "Leave it out")])


def _write_model(policy: SavedPolicy, folder: Path, dtype: torch.dtype) -> str:
    model, adapter = policy.load(torch.device("cpu"))
    if adapter is not None:
        adapter.merge()
    convert(model, dtype)
    with library_writes(folder):
        save_model(model, folder)
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return f"{type(model).__name__} of {parameters:,} parameters"


@torch.no_grad()
def convert(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Gives all tensors another type, but those that its class reads in float32 from any file.

    The biases by which routers choose are such: rounded, they choose other experts.
    """
    exact = model._keep_in_fp32_modules_strict or ()
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_floating_point() and not any(part in name.split(".") for part in exact):
            tensor.data = tensor.data.to(dtype)


def _write_adapter(policy: SavedPolicy, folder: Path, dtype: torch.dtype) -> str:
    source = policy.folder
    tensors = load_tensors(source / lora.WEIGHTS)
    save_tensors(folder / lora.WEIGHTS, {name: t.to(dtype) for name, t in tensors.items()})
    shutil.copyfile(source / lora.CONFIG, folder / lora.CONFIG)
    parameters = sum(tensor.numel() for tensor in tensors.values())
    return f"an adapter of {parameters:,} parameters for {policy.config.policy.model}"


def _copy_tokenizer(policy: SavedPolicy, folder: Path) -> None:
    for path in sorted(policy.folder.iterdir()):
        if not any(path.match(pattern) for pattern in _NOT_COPIED):
            shutil.copyfile(path, folder / path.name)


def _make_durable(folder: Path) -> None:
    readable = folder.stat().st_mode & 0o666
    for path in sorted(folder.iterdir()):
        # safetensors makes files that nobody else may read, whatever the umask says.
        path.chmod(readable)
        fsync_file(path)
    fsync_dir(folder)
