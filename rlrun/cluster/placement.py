# SPDX-License-Identifier: Apache-2.0
"""Which machine gets which learner rank and engine, and whether all of them fit. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from rlrun.console.counted import counted

RANK_SHARE, ENGINE_SHARE = 0.6, 0.4
"""Of a place that both are in. More than half for the rank, as Ray fills up a GPU before it takes
the next: two ranks must not fit on one."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What is to be placed.

    Attributes:
        num_nodes: Machines to use, every one of them.
        ranks: Learner ranks.
        engines: Engines.
        cpus: Cores of each.
        on_gpu: Whether each takes a GPU.
        colocated: Whether the rank and the engine of a number share cores and GPU.
    """

    num_nodes: int
    ranks: int
    engines: int
    cpus: int
    on_gpu: bool
    colocated: bool

    @property
    def places(self) -> int:
        """Shares of a machine (cores, and a GPU where there are any) that are needed."""
        return max(self.ranks, self.engines) if self.colocated else self.ranks + self.engines

    def in_words(self) -> str:
        """Such as "2 learner ranks and 1 engine colocated"."""
        text = f"{counted(self.ranks, 'learner rank')} and {counted(self.engines, 'engine')}"
        return text + " colocated" * self.colocated


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a Ray actor goes.

    Attributes:
        node: Index of the machine among those of the plan.
        cpus: Its cores as Ray counts them; a part of a place that two share.
        gpus: Its GPUs, likewise.
    """

    node: int
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Where everything goes.

    Attributes:
        bundles: What is taken of each machine.
        ranks: Seats of the ranks, in order: neighbours are on the same machine where possible.
        engines: Seats of the engines.
    """

    bundles: tuple[dict[str, float], ...]
    ranks: tuple[Seat, ...]
    engines: tuple[Seat, ...]


@dataclass(frozen=True, slots=True)
class Node:
    """A machine of the cluster, with all that it has."""

    cpus: float
    gpus: float


def sizes(places: int, num_nodes: int) -> list[int]:
    """Places of each machine; they differ by at most one, larger ones first."""
    return [places // num_nodes + (i < places % num_nodes) for i in range(num_nodes)]


def plan(demand: Demand) -> Plan:
    """Spreads the places evenly: ranks first, engines after them, or both side by side."""
    counts = sizes(demand.places, demand.num_nodes)
    node_of = [node for node, count in enumerate(counts) for _ in range(count)]
    shared = min(demand.ranks, demand.engines) if demand.colocated else 0
    first = 0 if demand.colocated else demand.ranks

    def seat(place: int, share: float) -> Seat:
        share = share if place < shared else 1.0
        return Seat(node_of[place], demand.cpus * share, demand.on_gpu * share)

    return Plan(
        tuple(_bundle(demand, count) for count in counts),
        tuple(seat(rank, RANK_SHARE) for rank in range(demand.ranks)),
        tuple(seat(first + engine, ENGINE_SHARE) for engine in range(demand.engines)),
    )


def _bundle(demand: Demand, places: int) -> dict[str, float]:
    bundle = {"CPU": float(demand.cpus * places)}
    return bundle | ({"GPU": float(places)} if demand.on_gpu else {})


def shortage(demand: Demand, nodes: Sequence[Node]) -> tuple[str, str] | None:
    """What the machines lack, and what to do about it; None if everything fits."""
    room = sorted((_capacity(demand, node) for node in nodes), reverse=True)
    if _fits(demand.places, demand.num_nodes, room):
        return None
    parts = [_amounts(bundle) for bundle in plan(demand).bundles]
    there = _nodes([_amounts({"CPU": node.cpus, "GPU": node.gpus}) for node in nodes])
    what = f"{demand.in_words()} need {_nodes(parts)}, and the cluster has {there}"
    return what, _split_that_fits(demand, room)


def _amounts(resources: Mapping[str, float]) -> str:
    return " and ".join(counted(amount, kind, form="g") for kind, amount in resources.items())


def _nodes(parts: Sequence[str]) -> str:
    """Equal machines together: "2 nodes with 4 CPUs, 1 node with 2 CPUs"."""
    counts = {part: parts.count(part) for part in parts}
    texts = [f"{counted(count, 'node')} with {part}" for part, count in counts.items()]
    return ", ".join(texts) or "no node"


def _capacity(demand: Demand, node: Node) -> int:
    by_cpus = int(node.cpus // demand.cpus)
    return min(by_cpus, int(node.gpus)) if demand.on_gpu else by_cpus


def _fits(places: int, num_nodes: int, room: Sequence[int]) -> bool:
    """Whether machines with that much room, most first, take the places."""
    return len(room) >= num_nodes and all(
        count <= there for count, there in zip(sizes(places, num_nodes), room, strict=False)
    )


def _split_that_fits(demand: Demand, room: Sequence[int]) -> str:
    """The largest smaller run with about the same proportions."""
    for places in range(demand.places, 0, -1):
        for num_nodes in range(min(demand.num_nodes, places), 0, -1):
            if _fits(places, num_nodes, room):
                smaller = _scaled(demand, places, num_nodes)
                if smaller is not None:
                    return _as_keys(smaller)
    if any(room) and not demand.colocated:
        one = replace(demand, num_nodes=1, ranks=1, engines=1, colocated=True)
        return f"{_as_keys(one)} cluster.colocated=true (with grpo=sync)"
    return "Lower cluster.cpus_per_actor, or give the cluster more"


def _scaled(demand: Demand, places: int, num_nodes: int) -> Demand | None:
    if demand.colocated:
        ranks, engines = min(demand.ranks, places), min(demand.engines, places)
    elif places < 2:
        return None
    else:
        share = demand.engines / (demand.ranks + demand.engines)
        engines = min(max(1, round(places * share)), places - 1)
        ranks = places - engines
    return replace(demand, num_nodes=num_nodes, ranks=ranks, engines=engines)


def _as_keys(demand: Demand) -> str:
    return (
        f"What fits: cluster.num_nodes={demand.num_nodes} "
        f"cluster.num_learner_ranks={demand.ranks} cluster.num_engines={demand.engines}"
    )
