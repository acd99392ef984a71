"""The socket of the rendezvous, opened by rank 0 before the seconds of `import torch`.

A rank that connects first would be refused, and torch retries only after half a second or more.
Now it is accepted, and waits no longer than rank 0 takes.
"""

from __future__ import annotations

import contextlib
import socket
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trainer.environment import Ranks


def open_rendezvous_socket(ranks: Ranks, env: Mapping[str, str]) -> socket.socket | None:
    """Return what torch's store is to serve at MASTER_PORT, on all addresses of this node.

    None on other ranks; under torchrun, whose agent has the store; and where the port cannot be
    had: torch finds that, too, and the rendezvous reports it.
    """
    if not serves_store(ranks, env) or ranks.world_size == 1:
        return None
    # As torch does: of both families if there are two.
    for family in (socket.AF_INET6, socket.AF_INET):
        with contextlib.suppress(OSError, ValueError):
            return socket.create_server(
                ("", ranks.master_port),
                family=family,
                backlog=max(ranks.world_size, socket.SOMAXCONN),
                dualstack_ipv6=family == socket.AF_INET6,
            )
    return None


def serves_store(ranks: Ranks, env: Mapping[str, str]) -> bool:
    """Whether this rank serves the store. Under torchrun its agent already does."""
    return ranks.is_main and not is_agents_store(env)


def is_agents_store(env: Mapping[str, str]) -> bool:
    """Whether torchrun's agent serves the store."""
    return env.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
