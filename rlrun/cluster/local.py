# SPDX-License-Identifier: Apache-2.0
"""cluster=local: the learner and generation in this process, on one device."""

from __future__ import annotations

from dataclasses import dataclass

from rlrun.interfaces import Cluster, component


@component("cluster/local")
@dataclass(kw_only=True, slots=True)
class LocalCluster(Cluster):
    """One process; no Ray."""
