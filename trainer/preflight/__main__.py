"""python -m trainer.preflight: one process a node, which sends one report and ends with code 0.

It imports torch once and forks a process for each GPU, and for each pair of nodes that measure
their link; each has a time limit. Without torch it reports nothing: the monitor's part is all then.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from rundir import channel, codes, events
from rundir.preflight import limits
from rundir.preflight.verdict import REPORT, Reading, Report
from rundir.text import problem
from trainer.environment import set_torch_defaults

if TYPE_CHECKING:
    from collections.abc import MutableMapping, Sequence

    from rundir.preflight.limits import Check
    from rundir.preflight.pairs import Measured

_REMEDY = "run jobs/prelaunch.sh --preflight"
_LONGEST_S = 600.0
"""Of what has no limit."""


class Node(NamedTuple):
    """This node: its name, the job's environment and limits, and where its report goes."""

    name: str
    environ: MutableMapping[str, str]
    table: tuple[Check, ...]

    def limit_s(self, name: str) -> float:
        """Return a time limit of the table."""
        return min(limits.limit_of(self.table, name), _LONGEST_S)

    def send(self, readings: Sequence[Reading], measured: Sequence[Measured] = ()) -> None:
        """Report to the supervisor."""
        deliver = channel.reporter(self.environ[channel.RUN_DIR], self.name, self.environ)
        log = events.EventLog(deliver, "trainer", int(self.environ["DDP_ATTEMPT"]), self.name)
        report = Report(self.name, "trainer", tuple(readings), tuple(measured))
        log.write(REPORT, **report.to_event())


def main(environ: MutableMapping[str, str]) -> int:
    """Check the node and send the report."""
    if not environ.get(channel.RUN_DIR) or not environ.get("DDP_PREFLIGHT_STEP"):
        rule = "trainer.preflight must be started by a job's agent"
        print(f"preflight: {problem(rule, 'none', _REMEDY)}", file=sys.stderr)
        return codes.USAGE
    table = limits.parse(environ.get(limits.VARIABLE, ""))
    node = Node(environ["DDP_NODE"], environ, table)
    began_s = time.monotonic()
    watchdog = threading.Timer(node.limit_s("start_s"), _give_up, (node, began_s))
    watchdog.daemon = True
    watchdog.start()
    try:
        set_torch_defaults(environ)
        check = import_module("trainer.preflight.check").check  # which imports torch
    except ImportError as error:
        print(f"preflight: GPUs and links are not checked: {error}", file=sys.stderr)
        return 0
    finally:
        watchdog.cancel()
    started = Reading("start_s", time.monotonic() - began_s)
    readings, measured = check(node)
    node.send([started, *readings], measured)
    return 0


def _give_up(node: Node, began_s: float) -> None:
    """Report that torch is not there yet, and end. A cold file system is no fault of the node."""
    node.send([Reading("start_s", time.monotonic() - began_s)])
    os._exit(0)


if __name__ == "__main__":
    exit_code = main(os.environ)
    if multiprocessing.active_children():  # killed, and waiting for the kernel: not waited for here
        os._exit(exit_code)
    sys.exit(exit_code)
