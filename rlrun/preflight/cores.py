# SPDX-License-Identifier: Apache-2.0
"""How the cores of CPUs are shared out, and what a run on them can only tell once it has run."""

from __future__ import annotations

from rlrun.cluster.ray import RayCluster
from rlrun.config.schema import RunConfig
from rlrun.console.counted import counted
from rlrun.derived import thread_counts
from rlrun.planning.plan import Layout
from rlrun.preflight.lines import Findings
from rlrun.process.machine import available_cores, cores_to_take


def look_at_cores(config: RunConfig, layout: Layout, findings: Findings) -> None:
    """The split between learner and generators, and how to find out whether async is worth it."""
    cluster = config.cluster
    if isinstance(cluster, RayCluster):
        where = "which take turns" if layout.colocated else "apart"
        cores = cluster.cpus_per_actor
        each = f"{counted(cores, 'core')} each"
        text = f"{layout.ranks} to train and {layout.engines} to sample, {each}, {where}"
    else:
        learner, generator = thread_counts(config, cores_to_take())
        when = "at once" if config.grpo.concurrent else "in turns"
        text = (
            f"{counted(learner, 'thread')} to train and {generator} to sample, {when}; "
            f"{counted(available_cores(), 'core')} free to use"
        )
    findings.add("split", text)
    findings.add(
        "async",
        "only a run can tell on a CPU: after some steps, `rlrun simulate --from RUN_DIR` says "
        "whether grpo=async is worth it and which age it needs",
    )
