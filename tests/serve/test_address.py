# SPDX-License-Identifier: Apache-2.0
"""Addresses and how they are written in URLs."""

from __future__ import annotations

import pytest

from rlrun.config import load
from rlrun.errors import ConfigError
from rlrun.serve.address import default_host, is_loopback, url_of
from rlrun.serve.start import _host_for, peer_of
from tests.cluster.conftest import SPREAD


def test_without_another_machine_it_is_the_loopback_address() -> None:
    assert default_host(None) == "127.0.0.1"


def test_with_one_it_is_the_address_on_the_way_there() -> None:
    assert default_host("127.0.0.1") == "127.0.0.1"
    assert default_host("localhost") in ("127.0.0.1", "::1")
    with pytest.raises(OSError, match=r"(?i)name"):
        default_host("no-such-host.invalid")


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("10.0.0.5", "http://10.0.0.5:80"),
        ("node-7", "http://node-7:80"),
        ("::1", "http://[::1]:80"),
        ("0.0.0.0", "http://127.0.0.1:80"),
        ("::", "http://[::1]:80"),
    ],
)
def test_a_url_can_be_called(host: str, url: str) -> None:
    assert url_of(host, 80) == url


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.5", "::1", "localhost", "0.0.0.0"])
def test_an_address_of_every_machine_is_of_no_other(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize(
    ("overrides", "ray_address", "peer"),
    [
        ((), None, None),
        (("cluster=ray",), "10.0.0.1:6379", None),
        ((*SPREAD, "cluster.address=auto"), "10.0.0.1:6379", "10.0.0.1"),
        ((*SPREAD, "cluster.address=auto"), "[fd00::1]:6379", "fd00::1"),
        (("env.agents={a: 'http://localhost:1', b: 'http://10.0.0.7:9'}",), None, "10.0.0.7"),
        (("env.agents={a: 'http://127.0.0.1:9'}",), None, None),
        (("env.head_server='http://gym-head:11000'",), None, "gym-head"),
    ],
)
def test_the_policy_is_reached_from_where_it_is_asked(
    overrides: tuple[str, ...], ray_address: str | None, peer: str | None
) -> None:
    recipe = "gym_quickstart" if any("env." in one for one in overrides) else "quickstart"
    run = load([f"+recipe={recipe}", *overrides]).config
    assert peer_of(run, ray_address) == peer


def test_a_machine_that_is_not_found_is_an_error_with_the_key_to_set() -> None:
    with pytest.raises(ConfigError, match=r"no-such-host.invalid.*Set generation.http.host"):
        _host_for("no-such-host.invalid")
