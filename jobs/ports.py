"""A free TCP port of this machine at which ranks can meet."""

from __future__ import annotations

import socket

_FIRST, _LAST = 10_000, 65_535
_ENOUGH = 1_000
"""Where both ranges beside the ephemeral one are smaller, as in a common tuning, all are used."""


def port_range() -> tuple[int, int]:
    """Return the first and last port to choose from.

    The larger of the two ranges beside the ephemeral one, clear of the well-known ports: any
    program's outgoing connection may take a port in between.
    """
    with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
        low, high = map(int, file.read().split())
    below, above = low - _FIRST, _LAST - high
    if below < _ENOUGH and above < _ENOUGH:
        return _FIRST, _LAST
    return (_FIRST, low - 1) if below >= above else (max(high + 1, _FIRST), _LAST)


def free_port(number: int) -> int:
    """Return a free port: the one that belongs to `number`, or the next that is free.

    Raises:
        OSError: none is.

    """
    first, last = port_range()
    num_ports = last - first + 1
    for offset in range(num_ports):
        port = first + (number + offset) % num_ports
        if _is_free(port):
            return port
    raise OSError(f"no port is free from {first} to {last}")


def _is_free(port: int) -> bool:
    try:
        with socket.create_server(("", port)):
            return True
    except OSError:
        return False
