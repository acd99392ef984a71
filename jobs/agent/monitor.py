"""The monitor of a node: started and ended by the agent of its first rank.

It decides only that ranks hang: without it they run on.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, NamedTuple

from jobs import programs
from jobs.agent.child import Child, Streams, start
from jobs.agent.command import is_preflight
from jobs.messages import info
from rundir.paths import RunDir, gutil_path
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jobs.agent.reports import Reports
    from jobs.loop import Loop

_FIRST_SAMPLE_S = 3
_GRACE_S = 3


class Monitor(NamedTuple):
    """A monitor that runs."""

    child: Child
    node: str
    log: str

    def report(self, reports: Reports) -> None:
        """Report that it runs."""
        reports.write("monitor_up", node=self.node, pid=self.child.pid)

    def stop(self, loop: Loop, reports: Reports) -> None:
        """End it. A command of a blink still has its log: a first sample is waited for."""
        for _ in range(_FIRST_SAMPLE_S * 20):
            if self.child.code is not None or _has_content(self.log):
                break
            loop.pause(0.05)
        self.child.stop(_GRACE_S, loop)
        reports.write("monitor_end", node=self.node, pid=self.child.pid, code=self.child.code)


def start_monitor(environ: Mapping[str, str], root: str) -> Monitor | None:
    """Start the node's monitor; None if it is not wanted or there is no Python for it."""
    node = environ["DDP_NODE"]
    if environ["DDP_MONITOR"] == "0":
        return None
    python = programs.find_python(root, environ)
    lack = _lack(python, root, environ)
    if not python or lack:
        info(f"no monitor on {node}: {lack}", "launcher")
        return None
    log = gutil_path(environ["DDP_OUT"], environ["DDP_JOB_ID"], node)
    argv = programs.module_command(root, python, "monitor", environ)
    if is_preflight(environ):
        argv += ["preflight", environ["DDP_RUN_DIR"]]
        log = ""  # it has none, and is waited for until it ends
    else:
        argv += ["record", "--out", log, "--interval", environ.get("DDP_MONITOR_INTERVAL") or "15"]
        argv += ["--compose", environ["DDP_RUN_DIR"]]
    argv += ["--launch-id", environ["DDP_LAUNCH_ID"]]
    own_log = os.open(
        RunDir(environ["DDP_RUN_DIR"]).monitor_log(node),
        os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC,
        0o666,
    )
    # SIGUSR1 may reach every process of the step, before Python has a handler for it.
    ignored = (signal.SIGUSR1,)
    child = start(argv, environ, Streams(own_log, own_log), signal.SIGTERM, ignored)
    os.close(own_log)
    return Monitor(child, node, log)


def _lack(python: str | None, root: str, environ: Mapping[str, str]) -> str:
    """Say what the monitor lacks here; empty if nothing. In an image it may be much."""
    if not python:
        return "no python3; set DDP_PYTHON"
    ours = {**environ, "PYTHONPATH": programs.python_path(root, environ)}
    if programs.can_import(python, "tomllib, pynvml", ours):
        return ""
    if not programs.is_new(python, environ):
        found = programs.version(python, environ)
        return problem("it needs Python 3.11 or later", f"{found} at {python}", "set DDP_PYTHON")
    remedy = "install it there, or run 'make demo' once, from where images get it, too"
    return problem("it needs nvidia-ml-py", f"none for {python}", remedy)


def _has_content(path: str) -> bool:
    try:
        return os.path.getsize(path) > 0
    except OSError:
        return False
