# SPDX-License-Identifier: Apache-2.0
"""What is refused before Ray is even imported."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.config.config_problems import QUICK, only_problem
from tests.conftest import environment
from tests.e2e.forked import forked as rlrun

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


def test_without_ray_the_run_says_how_to_get_it(tmp_path: Path) -> None:
    hidden = "import sys, importlib.util as u; f = u.find_spec; "
    hidden += "u.find_spec = lambda name, *a: None if name == 'ray' else f(name, *a); "
    hidden += f"sys.argv = ['rlrun', 'train', *{RAY!r}, 'run_dir={tmp_path / 'run'}']; "
    hidden += "import rlrun.cli; rlrun.cli.main()"
    done = subprocess.run(
        [sys.executable, "-c", hidden], env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "pip install 'rlrun[ray]'" in done.stderr
    assert not (tmp_path / "run").exists()


def test_nothing_but_cluster_ray_imports_ray() -> None:
    code = "import sys, rlrun.cluster.ray, rlrun.assemble; sys.exit('ray' in sys.modules)"
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
