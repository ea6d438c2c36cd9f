# SPDX-License-Identifier: Apache-2.0
"""cluster=ray: learner ranks and engines as Ray actors, on one machine or many."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlrun.cluster.placement import Demand, sizes
from rlrun.console.counted import counted
from rlrun.errors import NotInstalled, Problem
from rlrun.interfaces import Cluster, Device, RunningCluster, component, setting

if TYPE_CHECKING:
    from rlrun.config.schema import RunConfig


@component("cluster/ray")
@dataclass(kw_only=True, slots=True)
class RayCluster(Cluster):
    """The same roles as in one process, each a Ray actor in a place that was reserved for it."""

    address: str | None
    num_nodes: int = setting(ge=1)
    gpus_per_node: int = setting(ge=0)
    gpu_memory_gib: float | None = setting(gt=0)
    num_learner_ranks: int = setting(ge=1)
    num_engines: int = setting(ge=1)
    cpus_per_actor: int = setting(ge=1)
    colocated: bool
    start_timeout_s: float = setting(gt=0)

    @property
    def demand(self) -> Demand:
        """What is to be placed."""
        return Demand(
            num_nodes=self.num_nodes,
            ranks=self.num_learner_ranks,
            engines=self.num_engines,
            cpus=self.cpus_per_actor,
            on_gpu=self.gpus_per_node > 0,
            colocated=self.colocated,
        )

    def problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        """What can be told of the sizes without looking at a cluster."""
        if self.address is None and self.num_nodes > 1:
            yield (
                ("num_nodes", "address"),
                f"num_nodes={self.num_nodes} with address=null, which is this machine alone",
                "Give address=auto on a machine of a Ray cluster, or num_nodes=1",
            )
        if self.address is not None and (not self.address.strip() or "//" in self.address):
            yield (
                ("address",),
                f"address={self.address!r} is no Ray cluster that a run can be part of",
                "Write null, auto or HOST:PORT; a remote one is reached by ray job submit",
            )
        if self.device is Device.CUDA and self.gpus_per_node == 0:
            yield (
                ("device", "gpus_per_node"),
                "device=cuda with gpus_per_node=0",
                "Set gpus_per_node to the GPUs that the run may take on each machine",
            )
        if self.device is Device.CPU and self.gpus_per_node > 0:
            yield (
                ("device", "gpus_per_node"),
                f"device=cpu with gpus_per_node={self.gpus_per_node}",
                "Set gpus_per_node=0, or device=auto",
            )
        yield from self._size_problems()

    def _size_problems(self) -> Iterator[tuple[tuple[str, ...], str, str]]:
        places, keys = self.demand.places, ("num_nodes", "num_learner_ranks", "num_engines")
        if places < self.num_nodes:
            yield (
                keys,
                f"num_nodes={self.num_nodes} is more than there are places to fill: {places} for "
                f"num_learner_ranks={self.num_learner_ranks} and num_engines={self.num_engines}",
                f"Set num_nodes={places} or less, or more ranks or engines",
            )
        elif 0 < self.gpus_per_node < max(sizes(places, self.num_nodes)):
            yield (
                (*keys, "gpus_per_node"),
                f"num_learner_ranks={self.num_learner_ranks} and num_engines={self.num_engines} "
                f"need {counted(places, 'GPU')}, num_nodes={self.num_nodes} x gpus_per_node="
                f"{self.gpus_per_node} are {self.num_nodes * self.gpus_per_node}",
                "Take fewer ranks or engines, or more nodes or GPUs",
            )

    def check_installed(self) -> None:
        """See ``Cluster.check_installed``."""
        # A mere folder of that name, such as Ray's own /tmp/ray seen from /tmp, has no origin.
        spec = importlib.util.find_spec("ray")
        if spec is None or spec.origin is None:
            what = "cluster=ray needs the package ray, which is not installed"
            remedy = "pip install 'rlrun[ray]', or write cluster=local"
            raise NotInstalled([Problem("cluster", what, remedy, ("cluster",))])

    def start(self, config: RunConfig, folder: Path) -> RunningCluster:
        """Joins or starts Ray, places everything and loads the policy."""
        self.check_installed()
        from rlrun.cluster.ray_roles import RayRoles

        return RayRoles(self, config, folder)
