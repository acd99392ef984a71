"""The monitor of a node: started and ended by the agent of its first rank.

It decides only that ranks hang: without it they run on.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from jobs import programs
from jobs.agent.child import Child, Streams, start
from jobs.agent.command import is_preflight
from jobs.messages import UsageError, info
from rundir import codes
from rundir.paths import RunDir, gutil_path
from rundir.plain import open_log, tail
from rundir.text import problem

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jobs.agent.reports import Reports
    from jobs.loop import Loop

_FIRST_SAMPLE_S = 3
_GRACE_S = 3


class Monitor:
    """A monitor that runs.

    Args:
        child: Its process.
        node: Whose GPUs and ranks it watches.
        log: The GPU log that it writes.
        own_log: What it has to say of itself.

    """

    def __init__(self, child: Child, node: str, log: str, own_log: str) -> None:
        """It has just been started."""
        self.child = child
        self._node, self._log, self._own_log = node, log, own_log
        self._is_stopped = False

    def report(self, reports: Reports, is_ending: Callable[[], bool]) -> None:
        """Report that it runs, and its end; to people too, if the job is not ending with it."""

        def report_end() -> None:
            code = self.child.code
            reports.write("monitor_end", node=self._node, pid=self.child.pid, code=code)
            if code and not self._is_stopped and not is_ending():
                info(
                    f"warning: the monitor of {self._node} {codes.describe(code)}: no more GPU"
                    f" samples of it, and no watchdog for its ranks; its log: {self._own_log}",
                    "launcher",
                )

        reports.write("monitor_up", node=self._node, pid=self.child.pid)
        self.child.on_end = report_end
        if self.child.code is not None:
            report_end()

    def stop(self, loop: Loop) -> None:
        """End it. A command of a blink still has its log: a first sample is waited for."""
        for _ in range(_FIRST_SAMPLE_S * 20):
            if self.child.code is not None or tail(self._log, 1):
                break
            loop.pause(0.05)
        self._is_stopped = True
        self.child.stop(_GRACE_S, loop)


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
    if os.path.islink(log):  # where others may write, it may lead to a file of this user's
        info(f"no monitor on {node}: a link at {log}", "launcher")
        return None
    argv += ["--launch-id", environ["DDP_LAUNCH_ID"]]
    own_log = RunDir(environ["DDP_RUN_DIR"]).monitor_log(node)
    try:
        fd = open_log(own_log)
    except OSError as error:
        info(f"no monitor on {node}: {error.strerror} at {own_log}", "launcher")
        return None
    # SIGUSR1 may reach every process of the step, before Python has a handler for it.
    ignored = (signal.SIGUSR1,)
    child = start(argv, environ, Streams(fd, fd), signal.SIGTERM, ignored)
    os.close(fd)
    return Monitor(child, node, log, own_log)


def _lack(python: str | None, root: str, environ: Mapping[str, str]) -> str:
    """Say what the monitor lacks here; empty if nothing. In an image it may be much."""
    if not python:
        return "no python3; set DDP_PYTHON"
    ours = {**environ, "PYTHONPATH": programs.python_path(root, environ)}
    if programs.can_import(python, "tomllib, pynvml", ours):
        return ""
    try:
        programs.check_python("it", python, environ, "set DDP_PYTHON")
    except UsageError as error:
        return str(error)
    remedy = "install it there, or run 'make demo' once, from where images get it, too"
    return problem("it needs nvidia-ml-py", f"none for {python}", remedy)
