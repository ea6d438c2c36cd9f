# SPDX-License-Identifier: Apache-2.0
"""cluster=local: the learner and generation in this process, on one device."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from rlrun.interfaces import Cluster, component


class Device(StrEnum):
    """What the tensors live on."""

    AUTO = "auto"
    """A GPU if there is one, the CPU otherwise."""
    CPU = "cpu"
    CUDA = "cuda"


@component("cluster/local")
@dataclass(kw_only=True, slots=True)
class LocalCluster(Cluster):
    """One process; no Ray."""

    device: Device
