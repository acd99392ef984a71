"""MASTER_ADDR and MASTER_PORT: where the ranks find each other. They are chosen here."""

from __future__ import annotations

import os
import re
import subprocess
from typing import TYPE_CHECKING, NamedTuple

from jobs.backends.base import Address
from jobs.checks import whole_number
from jobs.messages import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.backends.base import Backend, Surroundings
    from jobs.supervisor.settings import Settings

_ADDR, _PORT = "MASTER_ADDR", "MASTER_PORT"
_PORTS_APART = 1009
_NO_ADDRESS, _NO_PORT = 3, 4
"""Exit codes of probe.sh."""


class Search(NamedTuple):
    """Where a search for a port begins, and on whose behalf."""

    root: str
    number: int
    """Every attempt begins elsewhere: the port before may not be free again yet."""
    nodes: list[str]
    environ: Mapping[str, str]
    is_restart: bool


def search(here: Surroundings, nodes: list[str], attempt: int, *, is_restart: bool) -> Search:
    """Begin where no other job, no other run in this allocation and no attempt before began."""
    number = int(here.slurm.job_id or os.getpid())
    if here.is_interactive:
        number += os.getpid()
    number += _PORTS_APART * (attempt - 1)
    return Search(here.root, number, nodes, here.environ, is_restart)


def resolve(settings: Settings, backend: Backend, search: Search) -> None:
    """Put address and port of rank 0 in force, for an attempt on these nodes. Raises UsageError.

    What an attempt before chose is chosen anew; what the user set stays.
    """
    environ = search.environ
    node = backend.first_node(search.nodes)
    wanted = environ.get(_PORT)
    if wanted is not None:
        whole_number(_PORT, wanted, 1, 65535)
    interface_address, port = _probe(backend, node, wanted, search)
    address = _choose(backend, node, interface_address, search)
    settings.note(_ADDR, address.text, address.origin)
    settings.default(_PORT, port, f"by job id, free on {node}")


def _probe(backend: Backend, node: str, wanted: str | None, search: Search) -> Sequence[str]:
    """Run probe.sh on the node of rank 0, which may have neither our files nor a Python."""
    interface = search.environ.get("DDP_IFACE", "")
    with open(f"{search.root}/jobs/probe.sh", "rb") as probe:
        words = ["bash", "-s", "--", str(search.number), interface, wanted or ""]
        done = subprocess.run(
            backend.probe_words(node, words, is_restart=search.is_restart),
            stdin=probe,
            stdout=subprocess.PIPE,
            env=search.environ,
            check=False,
        )
    found = done.stdout.decode().split()
    if done.returncode == 0 and len(found) == 2:  # noqa: PLR2004 -- address and port
        return found
    if done.returncode == _NO_ADDRESS:
        raise UsageError(
            f"DDP_IFACE must name an interface with an address on {node}",
            f"none on '{interface}'",
            "see 'ip -br addr' there",
        )
    if done.returncode == _NO_PORT:
        raise UsageError(
            f"{_PORT} must be free on {node}",
            f"{wanted or 'every one'} taken",
            "unset it to have a free one chosen",
        )
    raise UsageError(
        f"the port of rank 0 must be probed on {node}",
        f"that the probe ended with code {done.returncode}",
        "is the node up (sinfo -N)?",
    )


def _choose(backend: Backend, node: str, interface_address: str, search: Search) -> Address:
    environ, num_nodes = search.environ, len(search.nodes)
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
    if address and (backend.is_in_place or _is_known_to_all(address.text, environ)):
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
    """A name is good if it means the same machine to every node: it resolves, not to loopback."""
    words = ["getent", "ahosts", name]
    try:
        done = subprocess.run(words, env=environ, stdout=subprocess.PIPE, check=False)
    except OSError:
        return False
    first = done.stdout.decode(errors="replace").split()[:1]
    return bool(first) and not is_loopback(first[0])


def is_loopback(address: str) -> bool:
    """Whether an address means another machine on every machine."""
    return address.startswith(("127.", "localhost")) or address in ("::1", "0.0.0.0")  # noqa: S104
