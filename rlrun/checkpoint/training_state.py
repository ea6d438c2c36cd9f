# SPDX-License-Identifier: Apache-2.0
"""How the state of training is stored on disk: safetensors and JSON, never pickles.

The optimizer's state is named by parameter rather than by its place in a list, and the states of
all random generators are tensors and numbers, so that a resumed run goes on bit for bit.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from rlrun.atomic import storage_error
from rlrun.errors import RESTORE, StorageError

_log = logging.getLogger(__name__)


def save_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Writes tensors of any device and layout to a safetensors file.

    Bits are kept exactly; of tensors that share memory each is written in full.

    Raises:
        StorageError: The file cannot be written.
    """
    # A fresh copy each where the format could not say it: it has no strides and no aliases.
    seen: set[int] = set()
    plain: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        value = tensor.detach().cpu().contiguous()
        storage = value.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != value.nbytes:
            value = value.clone()
        seen.add(value.untyped_storage().data_ptr())
        plain[name] = value
    try:
        save_file(plain, path)
    except SafetensorError as error:
        remedy = "Free disk space, or choose another run_dir"
        raise StorageError(str(path), f"cannot write: {error}", remedy) from error
    except OSError as error:
        raise storage_error(path, "write", error) from error


@contextmanager
def library_writes(folder: Path) -> Iterator[None]:
    """Turns what transformers' libraries raise when a disk refuses into a StorageError.

    An OSError is left to the caller. The package tokenizers raises a bare Exception.

    Raises:
        StorageError: They could not write to the folder.
    """
    try:
        yield
    except Exception as error:
        if not isinstance(error, SafetensorError) and type(error) is not Exception:
            raise
        remedy = "Free disk space, or choose another folder"
        raise StorageError(str(folder), f"cannot write: {error}", remedy) from error


def load_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file, on the CPU.

    Raises:
        StorageError: It is not there or not such a file.
    """
    try:
        return load_file(path, device="cpu")
    except SafetensorError as error:
        raise StorageError(str(path), f"is no safetensors file: {error}", RESTORE) from error
    except OSError as error:
        raise storage_error(path, "read", error) from error


def each_tensor(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a safetensors file one after the other, of which none is kept.

    Raises:
        StorageError: It is not there or not such a file.
    """
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            for name in file.keys():  # it is no mapping
                yield name, file.get_tensor(name)
    except SafetensorError as error:
        raise StorageError(str(path), f"is no safetensors file: {error}", RESTORE) from error
    except OSError as error:
        raise storage_error(path, "read", error) from error


def tensor_shapes(path: Path) -> dict[str, torch.Size]:
    """Shapes of the tensors of a safetensors file, by name; the tensors are not read.

    Raises:
        StorageError: As ``each_tensor``.
    """
    try:
        with safe_open(path, framework="pt") as file:
            names = file.keys()
            return {name: torch.Size(file.get_slice(name).get_shape()) for name in names}
    except SafetensorError as error:
        raise StorageError(str(path), f"is no safetensors file: {error}", RESTORE) from error
    except OSError as error:
        raise storage_error(path, "read", error) from error


def save_json(path: Path, value: object) -> None:
    """Writes a JSON value (strictly: no NaN, keys are strings).

    Raises:
        StorageError: The file cannot be written.
        ValueError, TypeError: The value is none that JSON has.
    """
    text = json.dumps(value, allow_nan=False) + "\n"
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise storage_error(path, "write", error) from error


def load_json(path: Path) -> Any:
    """The value of a JSON file.

    Raises:
        StorageError: It is not there or not JSON.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise StorageError(str(path), f"is no JSON: {error}", RESTORE) from error
    except OSError as error:
        raise storage_error(path, "read", error) from error


def flatten_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Iterable[tuple[str, Tensor]]
) -> dict[str, Tensor]:
    """The tensors of an optimizer's state as "<kind>/<parameter name>".

    For AdamW the kinds are step, exp_avg and exp_avg_sq. A parameter that was never updated has
    none. Learning rate and other settings are not part of it: they come from the configuration.

    Args:
        optimizer: Whose every state value is a tensor.
        parameters: What ``named_parameters()`` of the model gives.
    """
    return {
        f"{kind}/{name}": value
        for name, parameter in parameters
        for kind, value in optimizer.state.get(parameter, {}).items()
    }


def unflatten_optimizer_state(
    optimizer: torch.optim.Optimizer,
    parameters: Iterable[tuple[str, Tensor]],
    tensors: Mapping[str, Tensor],
    where: str,
) -> None:
    """Gives an optimizer the state that ``flatten_optimizer_state`` took.

    Args:
        optimizer: Of the same kind, over the same parameters.
        parameters: What ``named_parameters()`` of the model gives.
        tensors: What was saved.
        where: The file, for error messages.

    Raises:
        StorageError: The state is of other parameters or shapes.
    """
    names = {parameter: name for name, parameter in parameters}
    places = [p for group in optimizer.param_groups for p in group["params"]]
    place_of = {names[parameter]: place for place, parameter in enumerate(places)}
    state: dict[int, dict[str, Tensor]] = {}
    for key, value in tensors.items():
        kind, _, name = key.partition("/")
        if name not in place_of:
            raise StorageError(where, f"holds optimizer state of {name!r}, which is not trained")
        shape = places[place_of[name]].shape
        if value.dim() > 0 and value.shape != shape:
            what = f"{key} has shape {list(value.shape)}, the parameter {list(shape)}"
            raise StorageError(where, what, "Resume with the model that was trained")
        state.setdefault(place_of[name], {})[kind] = value.clone()
    # Through the optimizer's own method, which knows which of the tensors belong on the device.
    groups = optimizer.state_dict()["param_groups"]
    optimizer.load_state_dict({"state": state, "param_groups": groups})


def rng_state() -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The state of all global random generators of this process.

    These are torch's on the CPU and on every CUDA device, Python's ``random`` and NumPy's. Prompts
    and requests draw from seeds of their own, which need no state.

    Returns:
        Tensors for ``save_tensors`` and a value for ``save_json``.
    """
    tensors = {"torch/cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and _cuda_in_use():
        for index, state in enumerate(torch.cuda.get_rng_state_all()):
            tensors[f"torch/cuda/{index}"] = state
    version, internal, gauss = random.getstate()
    tensors["python"] = torch.tensor(internal, dtype=torch.int64)
    legacy = np.random.get_state(legacy=False)
    tensors["numpy"] = torch.from_numpy(legacy["state"]["key"].astype(np.int64))
    values = {
        "python": {"version": version, "gauss": gauss},
        "numpy": {
            "pos": int(legacy["state"]["pos"]),
            "has_gauss": int(legacy["has_gauss"]),
            "gauss": float(legacy["gauss"]),
        },
    }
    return tensors, values


def restore_rng_state(
    tensors: Mapping[str, Tensor],
    values: Mapping[str, Any],
    where: str,
) -> None:
    """Puts back what ``rng_state`` took.

    With another number of GPUs, those that are in both go on where they were; the states of the
    others are dropped, or stay as they are, with a notice.

    Args:
        tensors: Its tensors.
        values: Its other value.
        where: The file, for error messages.

    Raises:
        StorageError: A state is missing, or of another kind of generator.
    """
    saved = {int(n.rpartition("/")[2]): t for n, t in tensors.items() if n.startswith("torch/cuda")}
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if len(saved) != count and (saved or _cuda_in_use()):
        _log.warning(
            "%s holds the random states of %d GPUs, this process sees %d: GPUs that are in only "
            "one of the two do not go on where they were.",
            where,
            len(saved),
            count,
        )
    try:
        torch.set_rng_state(tensors["torch/cpu"])
        for index, state in saved.items():
            if index < count:
                torch.cuda.set_rng_state(state, index)
        python = values["python"]
        words = tuple(tensors["python"].tolist())
        random.setstate((python["version"], words, python["gauss"]))
        numpy = values["numpy"]
        key = tensors["numpy"].numpy().astype(np.uint32)
        np.random.set_state(("MT19937", key, numpy["pos"], numpy["has_gauss"], numpy["gauss"]))
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        what = f"is no complete state of random generators: {error}"
        raise StorageError(where, what, RESTORE) from error


def _cuda_in_use() -> bool:
    return bool(torch.cuda.is_initialized())
