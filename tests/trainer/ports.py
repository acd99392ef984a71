"""Ports at which the ranks of a test meet."""

import socket


def free_port() -> int:
    """Return one that is free at present."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
