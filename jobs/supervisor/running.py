"""Runs the ranks of one attempt, and has those of the next one wait meanwhile."""

from __future__ import annotations

import copy
import os
import time
from contextlib import suppress
from typing import TYPE_CHECKING, NamedTuple

from jobs.messages import UsageError, info
from jobs.supervisor import settings
from jobs.supervisor.elastic import ElasticStep, Returns
from jobs.supervisor.guard import Guard
from jobs.supervisor.standby import Standby
from jobs.supervisor.step import RunningStep
from rundir import codes
from rundir.text import problem

if TYPE_CHECKING:
    from jobs.loop import Timer
    from jobs.supervisor.current import Current

_STANDBY_S = 1.0
"""How often to see whether the ranks train."""


class Ran(NamedTuple):
    """What is known of a step that is over, beside its ranks' reports."""

    code: int
    guard: str = ""
    """Why the guard ended it; empty if it did not."""
    took_s: float = 0.0
    returned: tuple[str, ...] = ()
    """Nodes that are back, and for which the ranks were asked to stop."""


class Ranks:
    """Runs the ranks of one attempt after the other."""

    def __init__(self, now: Current) -> None:
        """Nothing runs yet."""
        self._now, self._plan, self._settings = now, now.plan, now.settings
        self._loop, self._journal, self._backend = now.loop, now.journal, now.plan.backend
        self._standby: Standby | None = None
        self.step: RunningStep | None = None
        """The step that runs."""

    def run(self) -> Ran:
        """Run the ranks to their end; if a signal has come before, start none."""
        began_s = time.monotonic()
        if self._now.requests.stop_signal:
            return Ran(codes.STOPPED)
        try:
            self.step = step = self._start()
        except UsageError as error:  # what was right at first is not now, such as a mount
            info(str(error))
            return Ran(codes.USAGE)
        except OSError as error:
            remedy = "raise the limit of processes (ulimit -u), or correct what this names"
            info(problem("the ranks' step must be started", error, remedy))
            return Ran(codes.FAILED)
        guard, returns = Guard(self._now, step), Returns(self._now, step)
        self.end_standby()  # one that did not fit; not before: on a lost node it may take seconds
        prepare = self._loop.every(_STANDBY_S, lambda: self._prepare_standby(prepare))
        self._loop.run(guard.is_over)
        returns.stop()
        self._now.lost = tuple(node for node in self._now.lost if node not in returns.spare)
        guard.stop()
        prepare.cancel()
        step.close()
        self.step = None
        return Ran(step.code, guard.why, time.monotonic() - began_s, returns.found)

    def prepare_backend(self) -> None:
        """Let the backend make ready what all attempts use; a signal ends the waiting."""
        if self._plan.is_elastic:
            return
        environ, is_stopped = self._now.environ, self._now.requests.is_stopped
        self._loop.call(lambda: self._backend.prepare(environ), until=is_stopped)

    def _start(self) -> RunningStep:
        """Start the step, from ranks that wait already if they are on the right nodes."""
        wanted, standby = self._now.step, None
        if self._standby and self._standby.fits(wanted):
            standby, self._standby = self._standby, None
        kind = ElasticStep if self._plan.is_elastic else RunningStep
        grace_s = self._settings.number("DDP_GRACE")
        return kind(self._now, wanted, self._journal, grace_s=grace_s, standby=standby)

    def _prepare_standby(self, timer: Timer) -> None:
        """Start ranks that wait for the next attempt, as soon as this one's train."""
        if not self._journal.reports.has_trained:
            return
        timer.cancel()
        job = self._plan.job
        may_restart = self._now.counters.restarts < job.max_restarts
        is_wanted = self._settings.is_on("DDP_WARM") and not job.is_own_command
        if may_restart and is_wanted and self._backend.has_standby:
            values = copy.deepcopy(self._settings)
            settings.note_attempt(values, values.number("DDP_ATTEMPT") + 1, job.id)
            own = values.environ(self._plan.here.environ)
            environ = {**own, "DDP_STANDBY": str(os.getsid(0))}
            step = self._now.step._replace(environ=environ, is_restart=True, is_standby=True)
            with suppress(OSError):  # ranks have used up what this user may start
                self._standby = Standby(self._loop, self._backend, step)

    def end_standby(self) -> None:
        """End the ranks that wait, if any do."""
        if self._standby:
            self._standby.end(is_lost=bool(self._now.lost))
            self._standby = None

    def sweep(self) -> None:
        """End what the attempt's ranks left behind on this node, and write what they printed."""
        self._now.sweep()
        self._now.flush()

    # ---- signals, and the end

    def take(self, signal_name: str) -> None:
        """Hand a signal on to the step that runs."""
        if self.step is not None and signal_name == "USR1":
            self.step.ask_for_checkpoint()
        elif self.step is not None:
            self.step.stop()

    def break_off(self) -> None:
        """End whatever was started."""
        if self.step is not None:
            self.step.end()
        self.end_standby()
        self._now.sweep()
