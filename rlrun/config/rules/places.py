# SPDX-License-Identifier: Apache-2.0
"""Rules on where learner, engines and agents are, and how they find each other."""

from __future__ import annotations

from rlrun.config.rules.rule import rule


@rule(
    "grpo.max_trajectory_age_steps",
    "cluster.colocated",
    "cluster.num_learner_ranks",
    "cluster.num_engines",
    remedy="Set cluster.colocated=false, or grpo=sync",
)
def _colocated_takes_turns(age: int, colocated: bool, ranks: int, engines: int) -> str | None:
    if not colocated:
        return None
    what = "cluster.colocated=true lets learner and engines share what they compute on, but with "
    what += "grpo=async they work at once"
    places = max(ranks, engines)
    if places == 1:
        return what
    split = f"cluster.num_learner_ranks={places - places // 2} cluster.num_engines={places // 2}"
    return f"{what}; apart, {split} would fit where they are"


@rule(
    "generation.num_engines",
    "generation.tensor_parallel_size",
    "cluster.num_engines",
    remedy="Set both to 1, and cluster.num_engines to the engines that there are to be",
)
def _engine_fits_its_place(num_engines: int, tensor_parallel_size: int, engines: int) -> str | None:
    if num_engines == tensor_parallel_size == 1:
        return None
    return (
        f"generation.num_engines={num_engines} and generation.tensor_parallel_size="
        f"{tensor_parallel_size} are for each of cluster.num_engines={engines} Ray actors, which "
        "has one place, and so one GPU"
    )


@rule(
    "env.max_retries",
    "generation.expose_http_server",
    remedy="Set generation.expose_http_server=true",
)
def _agents_find_the_policy(retries: int, exposed: bool) -> str | None:
    if exposed:
        return None
    return "env=gym with generation.expose_http_server=false: agents could not ask the policy"
