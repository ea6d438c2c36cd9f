# SPDX-License-Identifier: Apache-2.0
"""The seams: each slot's settings class (what conf/ fills) and the live handle that it makes.

Import them from here. They are defined in slots/, one file per subject, in the order of a step:
schedule.py, generation.py, env.py, batching.py, objective.py, cluster.py.

A variant is one Python file in the slot's package that registers a subclass of the slot with
``@component("slot/name")``, and one ``conf/slot/name.yaml``. Settings classes have no defaults of
their own: values come from conf/ alone. Files with settings classes import no torch at the top, so
that reading and checking a configuration stays quick.
"""

from __future__ import annotations

from rlrun.generation.abandoned import Abandoned
from rlrun.slots.batching import Batching, ReadyGroup
from rlrun.slots.cluster import Cluster, Device, Precision, RunningCluster
from rlrun.slots.env import (
    AgentEnvironment,
    Env,
    Environment,
    Episode,
    EpisodeOrder,
    GroupEnvironment,
    PolicyAddress,
)
from rlrun.slots.generation import Generation, Generator, GeneratorInputs, Http, Weights
from rlrun.slots.objective import (
    Advantage,
    Correction,
    CorrectionInputs,
    CorrectionOutput,
    Loss,
    LossInputs,
    LossOutput,
    MismatchVerdict,
)
from rlrun.slots.registry import REGISTRY, SLOTS, Checked, component, setting, variant_of
from rlrun.slots.schedule import GRPO, Effort, OverlongShaping, RewardPenalties, RewardScaling

__all__ = [
    "GRPO",
    "REGISTRY",
    "SLOTS",
    "Abandoned",
    "Advantage",
    "AgentEnvironment",
    "Batching",
    "Checked",
    "Cluster",
    "Correction",
    "CorrectionInputs",
    "CorrectionOutput",
    "Device",
    "Effort",
    "Env",
    "Environment",
    "Episode",
    "EpisodeOrder",
    "Generation",
    "Generator",
    "GeneratorInputs",
    "GroupEnvironment",
    "Http",
    "Loss",
    "LossInputs",
    "LossOutput",
    "MismatchVerdict",
    "OverlongShaping",
    "PolicyAddress",
    "Precision",
    "ReadyGroup",
    "RewardPenalties",
    "RewardScaling",
    "RunningCluster",
    "Weights",
    "component",
    "setting",
    "variant_of",
]
