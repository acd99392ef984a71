"""An agent that waits for its attempt to begin, with a process that has imported the trainer.

The supervisor starts the ranks of the attempt that may follow while this one trains. When it
begins, a line on standard input has what of environment and arguments has changed since; if the
input ends instead, no attempt follows.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from typing import TYPE_CHECKING

from jobs import programs
from jobs.agent import binding, child, contract, defaults
from jobs.agent.task import rank_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jobs.agent.child import Child, Streams

VARIABLE = "DDP_STANDBY"
"""Set for an agent that is to wait, to the session of its supervisor."""
_READ_BYTES = 1 << 16
_AUTOGROUP = "/proc/self/autogroup"
_LOWEST, _USUAL = 19, 0
"""Priorities, as nice has them."""
_RETRY_S, _MOST_TRIES = 0.02, 50
_LOW_S = 20.0
"""For so long; on a machine that has no time to spare it would never be ready."""


class Standby:
    """A process that has imported the trainer, and becomes a rank."""

    def __init__(self, environ: Mapping[str, str], root: str, supervisor_session: str) -> None:
        """Start it."""
        self._has_own_session = str(os.getsid(0)) != supervisor_session
        if self._has_own_session:
            _set_priority_of_session(_LOWEST)
        place = contract.resolve(environ).environ
        place = defaults.complete(place)
        place["DDP_RANK_ID"] = rank_id(place, place["RANK"])
        python = programs.find_python(root, place) or "python3"
        module = programs.module_command(root, python, "trainer.standby", place)
        self._socket, theirs = socket.socketpair()
        theirs.set_inheritable(True)
        chosen = binding.choose(place, os.sched_getaffinity(0))
        with open(os.devnull, "wb") as null, binding.bound(chosen):
            streams = child.Streams(null.fileno(), null.fileno())
            words = [*module, str(theirs.fileno())]
            self._child = child.start(words, place, streams, signal.SIGKILL, (signal.SIGUSR1,))
        theirs.close()

    def wait(self, environ: dict[str, str]) -> tuple[list[str], dict[str, str]]:
        """Wait for the attempt; return the launcher's words and the environment.

        Ends if none comes, with nothing left: for what a task leaves, Slurm takes a second more.
        """
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # of the ranks that train
        if self._has_own_session:
            select.select([0], [], [], _LOW_S)
            _set_priority_of_session(_USUAL)
        line = b""
        while not line.endswith(b"\n"):
            data = os.read(0, _READ_BYTES)
            if not data:
                self._child.send(signal.SIGKILL)
                os.waitpid(self._child.pid, 0)
                os._exit(0)
            line += data
        order = json.loads(line)
        changed = {**environ, **order["environ"]}
        kept = {name: value for name, value in changed.items() if value is not None}
        return order["words"], kept

    def start(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        streams: Streams,
        parent_death: int,
        ignored: Sequence[int] = (),
    ) -> Child:
        """Have it become the rank; start one as ever if it is gone."""
        self._child.reap()
        arguments = list(argv[argv.index("-m") + 2 :])  # what follows -m trainer
        order = {"arguments": arguments, "environ": dict(environ)}
        message = json.dumps(order).encode() + b"\n"
        try:
            if self._child.code is None:
                sent = socket.send_fds(self._socket, [message], [streams.out])
                if sent < len(message):  # else it may have closed its end already
                    self._socket.sendall(message[sent:])
                return self._child
        except OSError:
            self._child.send(signal.SIGKILL)
        finally:
            self._socket.close()
        return child.start(argv, environ, streams, parent_death, ignored)


def _set_priority_of_session(nice: int) -> None:
    """Set it for all ranks of this step that wait on this node.

    Linux divides a CPU among sessions before it asks for the priority of each process in them
    (`man 7 sched`, autogroup), and Slurm gives each step a session. A user may set it ten times a
    second, and every rank's agent tries to.
    """
    for _ in range(_MOST_TRIES):
        if _try_to_set(nice):
            return
        time.sleep(_RETRY_S)


def _try_to_set(nice: int) -> bool:
    """Set it if it is another; false: too soon after the last time. A kernel may have none."""
    try:
        with open(_AUTOGROUP, "r+b", buffering=0) as file:
            if int(file.read().split()[-1]) != nice:
                file.write(b"%d" % nice)
    except OSError as error:
        return not isinstance(error, BlockingIOError)
    return True
