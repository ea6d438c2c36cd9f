# SPDX-License-Identifier: Apache-2.0
"""What is refused before Ray is even imported."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

from rlrun.errors import ConfigError
from rlrun.inputs import read_inputs
from tests.config.config_problems import QUICK, only_problem
from tests.conftest import environment
from tests.e2e.forked import forked as rlrun
from tests.factories import config

RAY = (QUICK, "cluster=ray")


@pytest.mark.parametrize(
    ("overrides", "what"),
    [
        (("cluster.num_nodes=2",), "address=null, which is this machine alone"),
        (("cluster.address=auto", "cluster.num_nodes=3"), "2 for num_learner_ranks=1"),
        (("cluster.gpus_per_node=1",), "need 2 GPUs, num_nodes=1 x gpus_per_node=1 are 1"),
        (("cluster.device=cuda",), "device=cuda with gpus_per_node=0"),
        (
            ("cluster.device=cpu", "cluster.gpus_per_node=2"),
            "device=cpu with gpus_per_node=2",
        ),
        (("cluster.address=ray://head:10001",), "no Ray cluster that a run can be part of"),
        (("grpo=async", "cluster.colocated=true"), "they work at once"),
        (
            (
                "grpo=async",
                "cluster.colocated=true",
                "cluster.num_learner_ranks=4",
                "cluster.num_engines=3",
            ),
            "cluster.num_learner_ranks=2 cluster.num_engines=2 would fit",
        ),
    ],
)
def test_sizes_that_cannot_be_are_refused(overrides: tuple[str, ...], what: str) -> None:
    assert what in str(only_problem((*RAY, *overrides)))


def test_without_ray_the_run_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "ray" else found(name)
    )
    with pytest.raises(ConfigError, match=r"pip install 'rlrun\[ray\]', or write cluster=local"):
        read_inputs(config("cluster=ray"), lambda notice: None)


def test_a_configuration_is_read_without_ray_and_torch() -> None:
    code = "import sys, rlrun.cluster.ray; sys.exit(bool({'ray', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], env=environment()).returncode == 0


def test_a_machine_that_is_too_small_is_refused_before_a_model_loads(tmp_path: Path) -> None:
    done = rlrun(
        "train",
        *RAY,
        "cluster.num_engines=900",
        f"run_dir={tmp_path / 'run'}",
    )
    assert done.code == 2
    assert len(done.err.splitlines()) == 1
    assert "1 learner rank and 900 engines need 1 node with 901 CPUs" in done.err
