# SPDX-License-Identifier: Apache-2.0
"""Which address of this machine a server listens on."""

from __future__ import annotations

import ipaddress
import socket

LOOPBACK = "127.0.0.1"
DISCARD_PORT = 9


def default_host(peer: str | None) -> str:
    """The address under which this machine is seen by ``peer``; the loopback without one.

    Args:
        peer: Address or name of another machine of the run, such as the head of a cluster.

    Raises:
        OSError: There is no way to the peer, or no such name.
    """
    if peer is None:
        return LOOPBACK
    family, kind, protocol, _, address = socket.getaddrinfo(
        peer, DISCARD_PORT, type=socket.SOCK_DGRAM
    )[0]
    # Connecting a datagram socket sends nothing: it only looks up the route.
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])


def is_loopback(host: str) -> bool:
    """Whether a name or address is that of the machine itself, wherever it is used."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return host == "localhost"
    return address.is_loopback or address.is_unspecified


def url_of(host: str, port: int) -> str:
    """Base URL, without a path, of a server that listens on ``host``."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return f"http://{host}:{port}"
    if address.is_unspecified:
        # All interfaces: this one of them is there on every machine.
        host = LOOPBACK if address.version == 4 else "::1"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
