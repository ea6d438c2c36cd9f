# SPDX-License-Identifier: Apache-2.0
"""One rank of the learner as a Ray actor."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
import torch
import torch.distributed as dist

from rlrun.batch import Floats, Sample
from rlrun.cluster.ray_runtime import Whereabouts, whereabouts
from rlrun.config.schema import RunConfig
from rlrun.derived import sampling_of
from rlrun.errors import StorageError
from rlrun.learner.learner import Learner, Logprobs
from rlrun.learner.sharding import Ranks
from rlrun.learner.shards import Saving
from rlrun.process.machine import set_up_torch
from rlrun.refit.object_store import pack


class RankActor:
    """Runs as a Ray actor: one rank. Only the first one answers; the others would say the same."""

    def __init__(self, config: RunConfig, rank: int, folder: Path, working_directory: str) -> None:
        """Loads nothing yet; relative paths are those of the process that started the run."""
        self.config, self.rank, self.folder = config, rank, folder
        self.saving: Saving | None = None
        if os.path.isdir(working_directory):
            os.chdir(working_directory)

    def whereabouts(self) -> Whereabouts:
        """Where this is."""
        return whereabouts()

    def meeting_point(self) -> str:
        """Where all ranks can reach the first one, this being it."""
        address = whereabouts().ip
        with socket.socket() as free:
            free.bind((address, 0))
            return f"tcp://{address}:{free.getsockname()[1]}"

    def load(self, meeting_point: str) -> None:
        """Meets the other ranks and loads this one's part of the policy.

        Raises:
            StorageError: The run directory is not there on this machine.
        """
        if not self.folder.is_dir():
            raise StorageError(
                str(self.folder),
                f"learner rank {self.rank} ({whereabouts()}) does not see the run directory",
                "Put run_dir on a file system that all machines share",
            )
        cluster: Any = self.config.cluster
        on_gpu, size = cluster.gpus_per_node > 0, cluster.num_learner_ranks
        set_up_torch(self.config, cluster.cpus_per_actor)
        device = torch.device("cuda" if on_gpu else "cpu")
        ranks = Ranks()
        if size > 1:
            dist.init_process_group(
                # Offloaded parameters and checkpoints meet on CPUs.
                "cpu:gloo,cuda:nccl" if on_gpu else "gloo",
                init_method=meeting_point,
                rank=self.rank,
                world_size=size,
            )
            ranks = Ranks(dist.device_mesh.init_device_mesh(device.type, (size,)))
        sampling = sampling_of(self.config, training=True)
        self.learner = Learner(self.config.policy, self.config.loss, sampling, device, ranks)

    def logprobs(self, samples: Sequence[Sample]) -> Logprobs | None:
        """See ``Learner.logprobs``."""
        found = self.learner.logprobs(samples)
        return found if self.rank == 0 else None

    def ref_logprobs(self, samples: Sequence[Sample]) -> list[Floats] | None:
        """See ``Learner.ref_logprobs``."""
        found = self.learner.ref_logprobs(samples)
        return found if self.rank == 0 else None

    def score(self, token_ids: Sequence[int]) -> list[float] | None:
        """See ``Learner.score``."""
        found = self.learner.score(token_ids)
        return found if self.rank == 0 else None

    def update(self, minibatches: Sequence[Sequence[Sample]], step: int) -> dict[str, float] | None:
        """See ``Learner.update``."""
        metrics = self.learner.update(minibatches, step)
        return metrics if self.rank == 0 else None

    def peak_memory_bytes(self) -> int:
        """See ``Learner.peak_memory_bytes``."""
        return self.learner.peak_memory_bytes()

    def save(self, folder: Path) -> None:
        """See ``Learner.save``."""
        self.learner.save(folder)

    def save_shards(self, folder: Path) -> None:
        """See ``Learner.save_shards``; ``saved`` says when it is done."""
        self.saving = self.learner.save_shards(folder)

    def saved(self) -> bool:
        """Whether what ``save_shards`` began is written. Waits for nothing, so training goes on.

        Raises:
            StorageError: It could not be.
        """
        assert self.saving is not None, "save_shards comes first"
        if not self.saving.done():
            return False
        self.saving.finish()
        return True

    def load_checkpoint(self, folder: Path) -> None:
        """See ``Learner.load``."""
        self.learner.load(folder)

    def put_weights(self) -> list[Any]:
        """The whole weights in the object store: a list of the one reference, not of what it is to.

        Every rank has a part in gathering them; the others return an empty list.
        """
        if self.rank == 0:
            return [ray.put(pack(self.learner.weights()))]
        for _ in self.learner.weights():
            pass  # Gathering is all that is wanted.
        return []
