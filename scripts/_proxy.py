# SPDX-License-Identifier: Apache-2.0
"""A TCP proxy whose connections can be made slow, half open or reset at any moment."""

from __future__ import annotations

import socket
import struct
import threading
import time
from enum import StrEnum

CHUNK = 1024
POLL_S = 0.1
SLOW_S = 0.3
"""What a chunk waits for in a slow connection."""


class Mode(StrEnum):
    """What becomes of bytes."""

    THROUGH = "through"
    SLOW = "slow"
    HALF_OPEN = "half open"
    """Connections are taken and stay open, and nothing comes through them ever again."""
    RESET = "reset"
    """Connections are taken and reset, those that exist as well."""


class Proxy:
    """Passes on whatever connects to its port.

    Args:
        target: The port that it stands in front of; may change.

    Attributes:
        port: Its own.
        mode: What becomes of bytes from now on.
    """

    def __init__(self, target: int) -> None:
        self.target, self.mode = target, Mode.THROUGH
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self._over = threading.Event()
        threading.Thread(target=self._accept, daemon=True).start()

    def close(self) -> None:
        """Takes no more connections; those that exist end by themselves."""
        self._over.set()
        self._listener.close()

    def _accept(self) -> None:
        while not self._over.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target), timeout=5)
        except OSError:
            client.close()
            return
        back = threading.Thread(target=self._pump, args=(server, client), daemon=True)
        back.start()
        self._pump(client, server)
        back.join()
        client.close()
        server.close()

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        """Passes bytes on in one direction, until one side ends."""
        source.settimeout(POLL_S)
        try:
            while not self._over.is_set():
                if self.mode is Mode.RESET:
                    for end in (source, sink):
                        # Closed without lingering, a connection is reset.
                        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                if self.mode is Mode.HALF_OPEN:
                    self._over.wait()
                    return
                try:
                    data = source.recv(CHUNK)
                except TimeoutError:
                    continue
                if not data:
                    break
                if self.mode is Mode.SLOW:
                    time.sleep(SLOW_S)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return
