# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rlrun.cluster.placement import Demand, Node, plan, shortage

DEMANDS = st.builds(
    Demand,
    num_nodes=st.integers(1, 6),
    ranks=st.integers(1, 9),
    engines=st.integers(1, 9),
    cpus=st.integers(1, 4),
    on_gpu=st.booleans(),
    colocated=st.booleans(),
).filter(lambda demand: demand.num_nodes <= demand.places)
NODES = st.lists(st.builds(Node, cpus=st.integers(0, 16), gpus=st.integers(0, 8)), max_size=6)


def demand(**changes: int | bool) -> Demand:
    values = {"num_nodes": 1, "ranks": 2, "engines": 2, "cpus": 1, "on_gpu": False}
    return Demand(**{**values, "colocated": False, **changes})  # type: ignore[arg-type]


@given(DEMANDS)
def test_seats_fill_what_is_taken_and_no_machine_is_left_out(wanted: Demand) -> None:
    found = plan(wanted)
    assert (len(found.ranks), len(found.engines)) == (wanted.ranks, wanted.engines)
    assert len(found.bundles) == wanted.num_nodes
    for node, bundle in enumerate(found.bundles):
        seats = [seat for seat in (*found.ranks, *found.engines) if seat.node == node]
        assert seats
        assert sum(seat.cpus for seat in seats) == pytest.approx(bundle["CPU"])
        assert sum(seat.gpus for seat in seats) == pytest.approx(bundle.get("GPU", 0.0))


@given(DEMANDS)
def test_colocated_partners_are_on_the_same_machine(wanted: Demand) -> None:
    found = plan(wanted)
    if wanted.colocated:
        for rank, engine in zip(found.ranks, found.engines, strict=False):
            assert rank.node == engine.node
            assert rank.cpus + engine.cpus == pytest.approx(wanted.cpus)
            # Ray would put two halves on one GPU.
            assert 2 * rank.gpus > rank.gpus + engine.gpus == wanted.on_gpu or not wanted.on_gpu
        alone = (*found.ranks[wanted.engines :], *found.engines[wanted.ranks :])
        assert all(seat.cpus == wanted.cpus for seat in alone)


@given(DEMANDS)
def test_machines_that_are_exactly_what_is_taken_suffice(wanted: Demand) -> None:
    nodes = [Node(bundle["CPU"], bundle.get("GPU", 0.0)) for bundle in plan(wanted).bundles]
    assert shortage(wanted, nodes) is None
    assert shortage(wanted, nodes[:-1]) is not None


@given(DEMANDS, NODES)
def test_the_split_that_is_advised_fits(wanted: Demand, nodes: list[Node]) -> None:
    found = shortage(wanted, nodes)
    if found is None or "What fits" not in found[1]:
        return
    num_nodes, ranks, engines = (int(number) for number in re.findall(r"=(\d+)", found[1]))
    colocated = wanted.colocated or "colocated=true" in found[1]
    advised = Demand(num_nodes, ranks, engines, wanted.cpus, wanted.on_gpu, colocated)
    assert shortage(advised, nodes) is None


@pytest.mark.parametrize(
    ("wanted", "nodes", "what", "remedy"),
    [
        (
            demand(),
            [Node(2, 0)],
            "2 learner ranks and 2 engines need 1 node with 4 CPUs, and the cluster has 1 node "
            "with 2 CPUs and 0 GPUs",
            "What fits: cluster.num_nodes=1 cluster.num_learner_ranks=1 cluster.num_engines=1",
        ),
        (
            demand(num_nodes=4, ranks=8, engines=24, on_gpu=True, cpus=4),
            [Node(64, 8), Node(64, 8)],
            "need 4 nodes with 32 CPUs and 8 GPUs, and the cluster has 2 nodes with 64 CPUs and "
            "8 GPUs",
            "cluster.num_nodes=2 cluster.num_learner_ranks=4 cluster.num_engines=12",
        ),
        (
            demand(ranks=1, engines=1),
            [Node(1, 0)],
            "need 1 node with 2 CPUs",
            "num_engines=1 cluster.colocated=true (with grpo=sync)",
        ),
        (demand(cpus=8), [Node(4, 0)], "need 1 node with 32 CPUs", "Lower cluster.cpus_per_actor"),
    ],
)
def test_a_shortage_names_what_is_there_what_is_needed_and_what_fits(
    wanted: Demand, nodes: list[Node], what: str, remedy: str
) -> None:
    found = shortage(wanted, nodes)
    assert found is not None
    assert what in found[0]
    assert remedy in found[1]
