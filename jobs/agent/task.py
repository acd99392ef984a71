"""The command of an agent while it runs: what signals do to it, and what it leaves behind."""

from __future__ import annotations

import _thread
import os
import signal
import time
from typing import TYPE_CHECKING

from jobs import processes
from jobs.agent import child
from jobs.messages import UsageError
from rundir import codes, events, procfs
from rundir.hang import ASK
from rundir.paths import RunDir
from rundir.plain import open_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobs.agent.child import Child
    from jobs.loop import Loop

_GRACE_S = 25
_GRACE_AFTER_FAILURE_S = 3
"""Then the others wait in a collective that nobody will complete."""
_KILLER_POLL_S = 0.1
_RETRY_S = 1
_SWEEP_S = 2


class Task:
    """One command with its log; from now on this process's signals are passed on to it."""

    def __init__(
        self,
        environ: Mapping[str, str],
        name: str,
        log: str,
        loop: Loop,
        *,
        adopts_orphans: bool = False,
    ) -> None:
        """Prepare for a command.

        Args:
            environ: its environment, but for what is added to it before it starts.
            name: its own among those of the launch: its rank, or its node.
            log: what it writes goes to this file.
            loop: runs meanwhile.
            adopts_orphans: every child that this process gets is the command's, or in `children`.

        Raises:
            UsageError: the log cannot be opened.

        """
        self._environ = environ
        self._rank_id = rank_id(environ, name)
        self.log = log
        self.log_fd = _open_log(log)
        self.log_offset = os.fstat(self.log_fd).st_size
        self.child: Child | None = None
        self.children: list[Child] = []
        """This command, and what else is to be reaped."""
        self.is_requested = False
        """Whether it was asked to end. By SIGUSR1 only if it has a handler for that."""
        self.is_ending = False
        """This agent was asked to end: the reader of its reports may be gone soon."""
        self.on_ask: Callable[[], object] = lambda: None
        """Called when the node's watchdog is asked for a report."""
        self._adopts_orphans = adopts_orphans
        self._inherited = {*processes.children()} if adopts_orphans else set()
        """Children of the program that this process was before, as in a container of Pyxis'."""
        if adopts_orphans:
            processes.adopt_orphans()
        self._loop = loop
        self._early = 0
        """The signal that came before there was a command."""
        self._num_requests = 0
        self._starter = os.getppid()
        self._kill_at_s = float("inf")
        self._oom_kills = processes.oom_kills()
        loop.catch(child.CAUGHT, self._on_signal)

    def start(
        self,
        argv: Sequence[str],
        streams: child.Streams,
        parent_death: int,
        ignored: Sequence[int] = (),
        start: Callable[..., Child] = child.start,
    ) -> Child:
        """Start the command; see `child.start`."""
        environ = {**self._environ, "DDP_RANK_ID": self._rank_id}
        self.child = start(argv, environ, streams, parent_death, ignored)
        self.children.append(self.child)
        if self._early:
            self._pass_on(self._early)
        return self.child

    def wait(self) -> int:
        """Wait for the command's end; return its code. Later requests have no effect."""
        running = self.child
        assert running is not None  # noqa: S101 -- it was started
        self._loop.run(lambda: running.code is not None)
        self._loop.turn(0)  # takes in a signal that has just arrived
        assert running.code is not None  # noqa: S101 -- just waited for
        return running.code

    def is_oom(self) -> bool:
        """Whether the kernel has killed the command for want of memory.

        Another cgroup's count would say nothing.
        """
        kills = processes.oom_kills()
        was_killed = self.child is not None and self.child.code == codes.KILLED
        return was_killed and kills is not None and kills != self._oom_kills and kills[1] > 0

    def sweep(self) -> None:
        """End what the command left behind: data loaders, detached children."""
        processes.end_all(self._left, _SWEEP_S, self._loop.pause)

    def _left(self) -> list[int]:
        found = {*self.descendants()}
        if self._adopts_orphans:
            found |= {*processes.children()} - self._own - self._inherited
        return processes.with_descendants(found)

    def descendants(self) -> list[int]:
        """Find the processes that the command has started, and the command."""
        return processes.processes_with(f"DDP_RANK_ID={self._rank_id}")

    @property
    def is_orphan(self) -> bool:
        """Whether the process that started this agent is dead."""
        return os.getppid() != self._starter

    @property
    def _own(self) -> set[int]:
        return {one.pid for one in self.children}

    def _on_signal(self, signum: int) -> None:
        if signum == signal.SIGCHLD:
            for one in self.children:
                one.reap()
            if self._adopts_orphans:
                processes.reap_orphans(self._own)
        elif signum == ASK:
            self.on_ask()
        elif signum == signal.SIGHUP and self.is_orphan:
            pass  # the kernel's, for a process group that has lost its slurmstepd: nobody's request
        elif self.child is None:
            if self._early in {0, signal.SIGUSR1}:
                self._early = signum
        elif self.child.code is None:
            self._pass_on(signum)
        elif signum != signal.SIGUSR1:
            self.is_ending = True
            # Sent to the process group, as by torchrun: the command was only faster to get it.
            self.is_requested |= self.child.code == codes.of_wait_status(-signum)

    def _pass_on(self, signum: int) -> None:
        if signum == signal.SIGUSR1:
            self._num_requests += 1
            self._request_checkpoint(self._num_requests)
        else:
            self.is_ending = True
            self._terminate()

    def _terminate(self) -> None:
        """Pass every SIGTERM on; after the first, kill what has not ended after the grace."""
        assert self.child is not None  # noqa: S101 -- only while it runs
        self.child.send(signal.SIGTERM)
        self.child.send(signal.SIGCONT)  # one that was stopped may still save
        if self._kill_at_s < float("inf"):
            return
        self.is_requested = True
        began_s, running = time.monotonic(), self.child
        grace_s = float(self._environ.get("DDP_GRACE") or _GRACE_S)
        self._kill_at_s = began_s + grace_s
        try:
            # In threads: a file system that is stuck must not keep us from killing in time.
            _thread.start_new_thread(self._kill_in_time, (running,))
            _thread.start_new_thread(self._shorten_grace, (began_s,))
        except RuntimeError:  # the command has used up what this user may start
            self._loop.after(grace_s, lambda: running.send(signal.SIGKILL))

    def _kill_in_time(self, running: Child) -> None:
        while running.code is None and time.monotonic() < self._kill_at_s:
            time.sleep(_KILLER_POLL_S)
        running.send(signal.SIGKILL)

    def _shorten_grace(self, began_s: float) -> None:
        """Shorten it if a rank has failed or hangs, whose report may still be on its way."""
        files = RunDir(self._environ["DDP_RUN_DIR"])
        for _ in range(_GRACE_AFTER_FAILURE_S):
            if has_failed(files, int(self._environ["DDP_ATTEMPT"])):
                self._kill_at_s = min(self._kill_at_s, began_s + _GRACE_AFTER_FAILURE_S)
                return
            time.sleep(1)

    def _request_checkpoint(self, number: int) -> None:
        """Pass SIGUSR1 on.

        It ends a program that has no handler for it, so only those that have one get it, and a
        program that is still starting gets it as soon as it has one.
        """
        if self.child is None or self.child.code is not None or number != self._num_requests:
            return
        pids = [self.child.pid]
        if not procfs.catches(self.child.pid, signal.SIGUSR1):
            left = self.descendants()
            pids = [pid for pid in left if procfs.catches(pid, signal.SIGUSR1)]
        if pids:
            self.is_requested = True
            processes.send(pids, signal.SIGUSR1)
        else:
            self._loop.after(_RETRY_S, lambda: self._request_checkpoint(number))


def _open_log(path: str) -> int:
    try:
        return open_log(path)
    except OSError as error:
        raise UsageError(
            "a rank's log must be writable",
            f"{error.strerror} at {path}",
            "make room there, or remove what is in its place",
        ) from None


def rank_id(environ: Mapping[str, str], name: str) -> str:
    """Give the value of DDP_RANK_ID by which all processes of a rank, or a node, can be found."""
    return f"{environ['DDP_LAUNCH_ID']}/{name}"


def has_failed(run_dir: RunDir, attempt: int) -> bool:
    """Whether a rank of this attempt hangs, or has failed without being asked to end.

    Code 75 is no failure: the others may still be writing their checkpoint.
    """
    return any(
        end.get("code") not in {codes.FINISHED, codes.STOPPED} and not end.get("requested")
        for end in events.read_attempt(run_dir.events, "rank_end", attempt)
    ) or any(events.read_attempt(run_dir.events, "verdict", attempt))
