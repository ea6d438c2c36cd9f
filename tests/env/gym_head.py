# SPDX-License-Identifier: Apache-2.0
"""Gym's own head server, as ``gym env start`` runs it, for servers that run already.

A program for Gym's environment. Standard input is the list of servers in the words of that command;
the first line of standard output is the port.
"""

from __future__ import annotations

import json
import socket
import sys

import uvicorn
from nemo_gym.config_types import BaseServerConfig
from nemo_gym.server_utils import HeadServer, ServerInstanceDisplayConfig


def main() -> None:
    """Serves until it is killed."""
    instances = [ServerInstanceDisplayConfig(**one) for one in json.loads(sys.stdin.readline())]
    listening = socket.socket()
    listening.bind(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    server = HeadServer(config=BaseServerConfig(host="127.0.0.1", port=port))
    server.set_server_instances([one.model_dump(mode="json") for one in instances])
    server.mark_ready()
    sys.stdout.write(f"{port}\n")
    sys.stdout.flush()
    uvicorn.Server(uvicorn.Config(server.setup_webserver(), log_level="warning")).run([listening])


if __name__ == "__main__":
    main()
