# SPDX-License-Identifier: Apache-2.0
"""A Ray cluster of two simulated machines, for all tests of a session."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ray.cluster_utils import Cluster

CPUS = 3
"""Of each machine, as Ray counts them; both are this one."""


@pytest.fixture(scope="session")
def address() -> Iterator[str]:
    """Where the cluster is reached."""
    args = {"num_cpus": CPUS, "include_dashboard": False, "object_store_memory": 2**28}
    cluster = Cluster(initialize_head=True, head_node_args=args)
    try:
        cluster.add_node(num_cpus=CPUS, object_store_memory=2**28)
        yield cluster.address
    finally:
        cluster.shutdown()
