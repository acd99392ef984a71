"""Chooses MASTER_ADDR and MASTER_PORT, by which the ranks find each other."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING

from jobs.backends.base import Address
from jobs.checks import whole_number
from jobs.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.backends.base import Backend, Surroundings
    from jobs.supervisor.settings import Settings

_ADDR, _PORT = "MASTER_ADDR", "MASTER_PORT"
_PORTS_APART = 1009
"""Between the ports at which two attempts of a job begin to search."""
_NO_ADDRESS, _NO_PORT = 3, 4
"""Exit codes of probe.sh."""


def resolve(
    settings: Settings,
    backend: Backend,
    here: Surroundings,
    nodes: Sequence[str],
    *,
    is_restart: bool,
) -> None:
    """Put address and port of rank 0 in force, for an attempt on these nodes. Raises UsageError.

    What an attempt before chose is chosen anew; what the user set stays.
    """
    node, wanted = backend.first_node(nodes), here.environ.get(_PORT)
    if wanted is not None:
        whole_number(_PORT, wanted, 1, 65535)
    number = _first_number(here, settings.number("DDP_ATTEMPT"))
    words = ["bash", "-s", "--", str(number), here.environ.get("DDP_IFACE", ""), wanted or ""]
    probe = backend.probe_words(node, words, is_restart=is_restart)
    interface_address, port = _probe(here, node, probe)
    address = _choose(backend, node, interface_address, here.environ, len(nodes))
    settings.note(_ADDR, address.text, address.origin)
    settings.default(_PORT, port, f"by job id, free on {node}")


def _first_number(here: Surroundings, attempt: int) -> int:
    """Return the number from which the first port to try is made.

    It differs between jobs, between runs in one allocation, and between attempts: the port of the
    last attempt may still be taken.
    """
    number = int(here.slurm.job_id or os.getpid())
    if here.is_interactive:
        number += os.getpid()
    return number + _PORTS_APART * (attempt - 1)


def _probe(here: Surroundings, node: str, words: list[str]) -> Sequence[str]:
    """Run probe.sh on the node of rank 0, which may have neither our files nor a Python."""
    with open(f"{here.root}/jobs/probe.sh", "rb") as probe:
        try:
            done = subprocess.run(
                words, stdin=probe, stdout=subprocess.PIPE, env=here.environ, check=False
            )
        except OSError as error:
            raise UsageError(
                f"{words[0]} must be on PATH, to probe the port of rank 0",
                f"{error.strerror} in '{here.environ.get('PATH', '')}'",
                "correct PATH",
            ) from None
    found = done.stdout.decode().split()
    if done.returncode == 0 and len(found) == 2:  # noqa: PLR2004 -- address and port
        return found
    if done.returncode == _NO_ADDRESS:
        raise UsageError(
            f"DDP_IFACE must name an interface with an address on {node}",
            f"none on '{here.environ.get('DDP_IFACE', '')}'",
            "see 'ip -br addr' there",
        )
    if done.returncode == _NO_PORT:
        raise UsageError(
            f"{_PORT} must be free on {node}",
            f"{here.environ.get(_PORT) or 'every one'} taken",
            "unset it to have a free one chosen",
        )
    raise UsageError(
        f"the port of rank 0 must be probed on {node}",
        f"that the probe ended with code {done.returncode}",
        "is the node up (sinfo -N)?",
    )


def _choose(
    backend: Backend,
    node: str,
    interface_address: str,
    environ: Mapping[str, str],
    num_nodes: int,
) -> Address:
    given, interface = environ.get(_ADDR), environ.get("DDP_IFACE")
    if given is not None:
        _check_given(given, num_nodes)
        return Address(given, "the environment")
    if interface:
        if num_nodes > 1 and is_loopback(interface_address):
            raise UsageError(
                "DDP_IFACE must be an interface that other nodes reach",
                f"'{interface}' with {interface_address} on {node}",
                "name the one of their network (ip -br addr)",
            )
        return Address(interface_address, f"DDP_IFACE on {node}")
    if not backend.is_in_place and _is_known_to_all(node, environ):
        return Address(node, "the node of rank 0")
    address = backend.address(node)
    if address and _is_known_to_all(address.text, environ):
        return address
    if num_nodes == 1:
        return Address("127.0.0.1", "one machine")
    raise UsageError(
        "the name of rank 0's node must resolve to an address other nodes reach",
        f"none for '{node}'",
        "set DDP_IFACE to its network interface, or MASTER_ADDR",
    )


def _check_given(address: str, num_nodes: int) -> None:
    if not address or re.search(r"\s", address):
        raise UsageError(
            f"{_ADDR} must be a host's name or address",
            f"'{address}'",
            "correct it, or unset it for the node of rank 0",
        )
    if num_nodes > 1 and is_loopback(address):
        raise UsageError(
            f"{_ADDR} must not be a loopback address with {num_nodes} nodes",
            f"'{address}'",
            "unset it, or set DDP_IFACE",
        )


def _is_known_to_all(name: str, environ: Mapping[str, str]) -> bool:
    """Whether every node means the same machine by a name: it resolves, and not to loopback."""
    words = ["getent", "ahosts", name]
    try:
        done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=False)
    except OSError:
        return False
    first = done.stdout.decode(errors="replace").split()[:1]
    return bool(first) and not is_loopback(first[0])


def is_loopback(address: str) -> bool:
    """Whether each machine means itself by an address."""
    return address.startswith(("127.", "localhost")) or address in ("::1", "0.0.0.0")  # noqa: S104
