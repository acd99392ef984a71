"""The step that runs: its output, its end, and the signals that its ranks get."""

from __future__ import annotations

import functools
import os
import signal
import time
from typing import TYPE_CHECKING, Any, Protocol

from jobs import processes
from jobs.supervisor.current import LAST_LINES_S
from rundir import codes
from rundir.channel import FrameReader

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Collection

    from jobs.backends.base import Step
    from jobs.loop import Timer
    from jobs.supervisor.current import Current
    from jobs.supervisor.reports import Reports
    from jobs.supervisor.standby import Standby

_STARTING_S = 30
"""How long a request for a checkpoint waits for ranks that are starting."""
_OTHERS_S = 8
"""How long the ranks in place may take to end after the first failure."""
_AFTER_GRACE_S = 5
"""How long processes may take to end beyond the grace of their ranks."""
_POLL_S = 0.2
_MAX_READ = 1 << 20
"""Bytes to read in one turn of the loop."""


class Receiver(Protocol):
    """Takes what ranks report, such as the run's journal."""

    reports: Reports

    def add(self, line: bytes) -> object:
        """Take a report that arrived."""
        ...

    def write(self, event: str, **keys: Any) -> object:  # noqa: ANN401 -- whatever JSON takes
        """Report an event of this script's own."""
        ...


class RunningStep:
    """All ranks of one attempt, from their start to their end.

    Args:
        now: The job, whose backend starts the step and whose output takes what ranks print.
        step: What is started.
        journal: Takes the reports that arrive on the step's standard output.
        grace_s: How long a rank may take to end.
        standby: The ranks, if they wait already.

    """

    def __init__(
        self,
        now: Current,
        step: Step,
        journal: Receiver,
        *,
        grace_s: int,
        standby: Standby | None = None,
    ) -> None:
        """Start it."""
        self._loop, self._backend, self._output = now.loop, now.plan.backend, now.output
        self._step, self._journal, self._grace_s = step, journal, grace_s
        self.code = codes.FINISHED
        """The first bad code of its processes."""
        self._frames = FrameReader()
        self._running, self._fd = standby.begin(step) if standby else processes.piped(self._start)
        self._end_timers: list[Timer] = []
        self._step_id: int | None = None
        self._loop.watch(self._fd, self._read)
        # The end of a process wakes the loop up.
        self._loop.catch([signal.SIGCHLD], lambda _number: None)

    def _start(self, stdout: int) -> list[subprocess.Popen[bytes]]:
        return list(self._backend.start(self._step, stdout))

    @property
    def failed_s(self) -> float | None:
        """When the step failed, so that all of it has to end; None as long as it has not."""
        return self._journal.reports.failed_s

    @property
    def left(self) -> Collection[str]:
        """Nodes that have left the step, which goes on without them."""
        return ()

    def lose(self, node: str, how: str) -> bool:
        """Go on without a lost node; return whether the step can do that."""
        del node, how
        return False

    def kill(self) -> None:
        """Kill the step's tasks on every node that answers. It may take a while."""
        for step_id in self._step_ids:
            self._backend.kill(step_id)

    @property
    def _step_ids(self) -> Collection[int | None]:
        return set(self._journal.reports.step_ids.values()) or (None,)

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self._step.layout.world_size

    @property
    def num_nodes(self) -> int:
        """Nodes in all."""
        return self._step.layout.num_nodes

    # ---- its output and its end

    def is_over(self) -> bool:
        """Whether every process has ended. What they left behind may still hold the pipe."""
        for process in list(self._running):
            if process.poll() is not None:
                self._running.remove(process)
                self._see_end(process)
        return not self._running

    def _see_end(self, process: subprocess.Popen[bytes]) -> None:
        self.code = self.code or codes.of_wait_status(process.returncode)
        # In place this is what srun --kill-on-bad-exit is under Slurm.
        if self.code and self._backend.is_in_place and not self._end_timers:
            # Ranks that fail together get a moment to end by themselves.
            for delay_s, number in ((_POLL_S, signal.SIGTERM), (_OTHERS_S, signal.SIGKILL)):
                act = functools.partial(self.signal, number)
                self._end_timers.append(self._loop.after(delay_s, act))

    def _read(self) -> bool:
        """Take what has arrived: reports to the journal, the rest to our own output.

        Returns:
            Whether there may be more.

        """
        try:
            data = os.read(self._fd, _MAX_READ)
        except BlockingIOError:
            return False
        if not data:
            self._forget_pipe()
            return False
        passed, lines = self._frames.feed(data)
        for line in lines:
            self._journal.add(line)
        if self._step_id != self._journal.reports.step_id:
            self._step_id = self._journal.reports.step_id
            self._backend.note_step(self._step_id)
        if passed:
            self._output.put(passed)
        return True

    def _forget_pipe(self) -> None:
        if self._fd >= 0:
            self._loop.forget(self._fd)
            os.close(self._fd)
            self._fd = -1

    def close(self) -> None:
        """Read the rest of the step's output, without waiting for processes that hold the pipe."""
        for timer in self._end_timers:
            timer.cancel()
        deadline_s = time.monotonic() + LAST_LINES_S
        while self._fd >= 0 and self._read() and time.monotonic() < deadline_s:
            pass
        self._forget_pipe()
        self._backend.note_step(None)

    def end(self) -> None:
        """End the step's processes, and wait until they have ended."""
        pids = [process.pid for process in self._running]
        processes.stop(pids, _AFTER_GRACE_S, self._loop.pause)

    # ---- signals

    def signal(self, number: int) -> None:
        """Signal what runs: srun, which signals every agent in turn, or in place the agents."""
        processes.send([process.pid for process in self._running], number)

    def ask_for_checkpoint(self) -> None:
        """Send SIGUSR1 as soon as every rank is up.

        It would end an agent that has no handler for it yet. A rank that is still starting has
        nothing to save, and can wait.
        """
        deadline_s = time.monotonic() + _STARTING_S

        def poll() -> None:
            num_up = self._journal.reports.num_started
            is_up = num_up >= self.world_size
            if self.is_over() or is_up or time.monotonic() >= deadline_s:
                timer.cancel()
                self.signal(signal.SIGUSR1)

        timer = self._loop.every(_POLL_S, poll)

    def stop(self) -> None:
        """End the ranks on request."""
        self.terminate()

    def ask_for_reports(self) -> None:
        """Have every node's watchdog report where its ranks are."""
        step_ids = self._step_ids
        self._loop.in_background(lambda: [*map(self._backend.ask_for_reports, step_ids)])

    def terminate(self) -> None:
        """Send the ranks SIGTERM; their agents kill what has not ended after the grace.

        Where the backend can signal the ranks, srun gets SIGTERM only if they outlive their grace.
        """
        if self._backend.is_in_place:
            self.signal(signal.SIGTERM)
            return
        step_ids = self._step_ids
        self._loop.in_background(lambda: [*map(self._backend.end, step_ids)], self._wait_or_end)

    def _wait_or_end(self, signalled: list[bool] | None) -> None:
        if not any(signalled or ()):
            self.signal(signal.SIGTERM)
            return
        delay_s = self._grace_s + _AFTER_GRACE_S
        self._loop.after(delay_s, lambda: self.signal(signal.SIGTERM))
