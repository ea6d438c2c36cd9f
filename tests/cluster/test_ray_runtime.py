# SPDX-License-Identifier: Apache-2.0
"""Joining a cluster and getting places in it, or being told why not."""

from __future__ import annotations

import time

import pytest
import ray
from ray.util import get_placement_group
from ray.util.placement_group import placement_group, remove_placement_group

from rlrun.cluster.ray_runtime import Runtime, _environment
from rlrun.errors import ConfigError, EnvironmentDown
from tests.cluster.conftest import CPUS, ray_config, settings
from tests.factories import config


def test_a_cluster_that_is_too_small_is_refused(ray_address: str) -> None:
    with pytest.raises(ConfigError, match=r"2 nodes with 3 CPUs.*cluster.num_engines=5"):
        Runtime(settings(ray_config(ray_address, "cluster.num_engines=9")))
    assert not ray.is_initialized()


def test_places_that_others_have_are_an_error_and_no_wait_without_end(ray_address: str) -> None:
    ray.init(address=ray_address, namespace="others", log_to_driver=False)
    wait_for_free_cpus(2 * CPUS)  # those of the test before have been given back
    assert placement_group([{"CPU": CPUS}], name="taken", lifetime="detached").wait(300)
    wait_for_free_cpus(CPUS)
    ray.shutdown()
    try:
        with pytest.raises(EnvironmentDown, match="of the whole cluster 3 CPUs"):
            Runtime(settings(ray_config(ray_address, "cluster.start_timeout_s=1")))
        assert not ray.is_initialized()
    finally:
        ray.init(address=ray_address, namespace="others", log_to_driver=False)
        remove_placement_group(get_placement_group("taken"))
        ray.shutdown()


def wait_for_free_cpus(count: int) -> None:
    """Ray tells of what was taken and given back after a while."""
    deadline = time.monotonic() + 300
    while ray.available_resources().get("CPU", 0) != count:
        assert time.monotonic() < deadline, ray.available_resources()
        time.sleep(0.1)


@pytest.mark.parametrize("nowhere", ["127.0.0.1:1", "no-such-host.invalid:6379"])
def test_no_cluster_at_the_address_is_an_error(nowhere: str) -> None:
    with pytest.raises(EnvironmentDown, match="no Ray cluster is reached"):
        Runtime(settings(ray_config(nowhere)))


def test_ray_that_comes_too_late_is_an_error_of_the_machine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def late(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr(ray, "init", late)
    with pytest.raises(EnvironmentDown, match="Ray does not start here: The current node timed"):
        Runtime(settings(config("cluster=ray", "cluster.address=null")))


def test_secrets_are_not_among_what_is_passed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray logs the variables that it is given for its Ray actors."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", "/models")
    passed = _environment()
    assert passed["HF_HOME"] == "/models"
    assert "hf_secret" not in passed.values()
