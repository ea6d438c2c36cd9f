# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of two simulated machines, for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rlrun.cluster.ray import RayCluster
from rlrun.config.schema import RunConfig
from tests.factories import config

SPREAD = (
    "cluster=ray",
    "cluster.num_nodes=2",
    "cluster.num_learner_ranks=2",
    "cluster.num_engines=2",
)
"""Two ranks and two engines over both machines."""

CPUS = 3
"""Of each machine, as Ray counts them; both are this one."""


def ray_config(address: str, *overrides: str) -> RunConfig:
    """The quickstart on the cluster."""
    return config(f"cluster.address={address}", *SPREAD, *overrides)


def settings(run: RunConfig) -> RayCluster:
    """The cluster's, with its type."""
    assert isinstance(run.cluster, RayCluster)
    return run.cluster


@pytest.fixture(scope="session")
def ray_address() -> Iterator[str]:
    """Where the cluster is reached."""
    from ray.cluster_utils import Cluster

    from rlrun.cluster.ray_session import Session

    args = {"num_cpus": CPUS, "include_dashboard": False, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=args)
    session = Session(Path(cluster.head_node.get_session_dir_path()))
    try:
        cluster.add_node(num_cpus=CPUS, object_store_memory=2**28)
        yield cluster.address
    finally:
        cluster.shutdown()
        session.end()
