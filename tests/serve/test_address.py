# SPDX-License-Identifier: Apache-2.0
"""Addresses and how they are written in URLs."""

from __future__ import annotations

import pytest

from rlrun.serve.address import default_host, url_of


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
