"""Free ports of the loopback interface."""

from __future__ import annotations

import random
import socket

# Above the ports of Ray's workers, below those that systems give to connections: what is free now
# stays so until its user binds it, however many sockets are opened meanwhile.
_PORTS = range(20_000, 32_000)


def free_port() -> int:
    """A port that nobody listens on."""
    while True:
        port = random.SystemRandom().choice(_PORTS)  # tests seed the usual generator
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
