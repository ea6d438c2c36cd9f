# SPDX-License-Identifier: Apache-2.0
"""Sharded checkpoints: every rank writes its part of each tensor, any number of ranks reads them.

torch.distributed.checkpoint does it, with storage in safetensors files: where a rank's piece of a
tensor belongs is JSON in the file's header. Its own format keeps that in a pickle, which nobody
should have to open.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed import ProcessGroup
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load as load_state
from torch.distributed.checkpoint.state_dict_saver import async_save

from rlrun.errors import StorageError

OPTIMIZER = "optimizer/"
"""What the names of the optimizer's tensors begin with; all others are the model's."""

REMEDY = "Restore the folder from a backup, or resume from an earlier checkpoint"


def begin_save(folder: Path, tensors: Mapping[str, Tensor], group: ProcessGroup | None) -> Saving:
    """Copies the tensors to memory and begins to write them; every rank must call it.

    Args:
        folder: Where to, made if needed; the same for all ranks, which must all see it.
        tensors: Whole ones or parts of sharded ones; changes after this call do not matter.
        group: Of processes that can meet on CPUs, used by nothing else; None for one process.
    """
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    detached = {name: tensor.detach() for name, tensor in tensors.items()}
    _expect_one_process(group)
    begun: Any = async_save(
        detached, storage_writer=writer, process_group=group, no_dist=group is None
    )
    return Saving(folder, begun)


class Saving:
    """A save that goes on in a thread of its own."""

    def __init__(self, folder: Path, future: Future[Any]) -> None:
        self._folder, self._future = folder, future

    def done(self) -> bool:
        """Whether it has ended. Does not block."""
        return self._future.done()

    def finish(self) -> None:
        """Returns when this rank's part is written.

        Raises:
            StorageError: It could not be, by this rank or another.
        """
        try:
            self._future.result()
        except (CheckpointException, OSError, SafetensorError) as error:
            what = f"cannot be written: {_cause(error)}"
            remedy = "Free disk space; earlier checkpoints are whole, and the run can be resumed"
            raise StorageError(str(self._folder), what, remedy) from error


def sizes(folder: Path) -> dict[str, torch.Size]:
    """The shapes of all whole tensors by name.

    Raises:
        StorageError: A file is damaged.
    """
    try:
        entries = HuggingFaceStorageReader(str(folder)).read_metadata().state_dict_metadata
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise StorageError(str(folder), f"cannot be read: {error}", REMEDY) from error
    return {n: e.size for n, e in entries.items() if isinstance(e, TensorStorageMetadata)}


def load(folder: Path, targets: Mapping[str, Tensor], group: ProcessGroup | None) -> None:
    """Fills tensors in place, each rank its part; every rank must call it.

    Args:
        folder: What ``begin_save`` wrote, on any number of ranks.
        targets: Whole or sharded; the folder may hold more than these.
        group: See ``begin_save``.

    Raises:
        StorageError: One is missing or has another shape, or a file is damaged.
    """
    there = sizes(folder)
    check_fit(folder, {name: target.shape for name, target in targets.items()}, there)
    values: dict[str, Any] = {name: target.detach() for name, target in targets.items()}
    reader = HuggingFaceStorageReader(str(folder))
    _expect_one_process(group)
    try:
        load_state(values, storage_reader=reader, process_group=group, no_dist=group is None)
    except (CheckpointException, OSError, SafetensorError) as error:
        what = f"cannot be read: {_cause(error)}"
        raise StorageError(str(folder), what, REMEDY) from error


def check_fit(
    folder: Path,
    wanted: Mapping[str, Collection[int]],
    there: Mapping[str, Collection[int]],
) -> None:
    """Makes sure that all tensors that are wanted are there, in their shapes.

    Raises:
        StorageError: They are not.
    """
    missing = sorted(wanted.keys() - there.keys())
    other = sorted(n for n in wanted.keys() & there.keys() if tuple(wanted[n]) != tuple(there[n]))
    if missing or other:
        raise StorageError(
            str(folder),
            f"the tensors do not fit the model (missing {missing[:3]}, of another shape "
            f"{other[:3]})",
            "Resume with the model that the run was started with",
        )


def _expect_one_process(group: ProcessGroup | None) -> None:
    if group is None:
        # Meant to be noticed by those who forgot to start the other ranks.
        warnings.filterwarnings("ignore", "torch.distributed is disabled", UserWarning)


def _cause(error: BaseException) -> str:
    """The first line of what went wrong; of several ranks, on the first of them."""
    if isinstance(error, CheckpointException) and error.failures:
        rank, (cause, _) = next(iter(error.failures.items()))
        return f"rank {rank}: {_cause(cause)}"
    return (str(error).strip() or type(error).__name__).splitlines()[0]
