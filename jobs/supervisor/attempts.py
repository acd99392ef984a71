"""The attempts: one start of all ranks after the other, within the allocation this job has."""

from __future__ import annotations

import copy
import time
from typing import TYPE_CHECKING

from jobs.backends.base import Step
from jobs.messages import UsageError, info, one_line, write
from jobs.supervisor import decide, history, preflight, rendezvous, run, settings, show
from jobs.supervisor import step as steps
from jobs.supervisor.elastic import Returns
from jobs.supervisor.elastic_step import ElasticStep
from jobs.supervisor.ending import Counters, Ending
from jobs.supervisor.guard import Guard, Traces, lost_nodes
from jobs.supervisor.hang import HangWatch
from jobs.supervisor.preflight import Preflight
from jobs.supervisor.standby import Standby
from jobs.supervisor.step import Output, RunningStep
from rundir import codes, failure, plain, secrets
from rundir.failure import Failure, classify

if TYPE_CHECKING:
    from jobs.backends.base import Backend
    from jobs.backends.slurm import Slurm
    from jobs.loop import Loop, Timer
    from jobs.supervisor.decide import Decision
    from jobs.supervisor.journal import Journal
    from jobs.supervisor.plan import Plan
    from jobs.supervisor.signals import Requests
    from rundir.nodes import BadNode

_LOG_END = 16384
_NO_PROGRAM = 2
"""With it Slurm says that the program is not there."""
_SHOWN_LINES = 20
_STANDBY_S = 1.0
"""How often it is looked whether ranks train."""


class Attempts:
    """Starts the ranks as often as is decided."""

    def __init__(self, plan: Plan, loop: Loop, requests: Requests, journal: Journal) -> None:
        """Carry a run on where a requeued job left it."""
        self._plan, self._loop, self._requests, self._journal = plan, loop, requests, journal
        self._settings, self._backend, self._job = plan.settings, plan.backend, plan.job
        self._files, self._here = plan.files, plan.here
        self._layout, self._nodes = plan.layout, plan.nodes[: plan.layout.num_nodes]
        self._output = Output(loop)
        self._step: RunningStep | None = None
        self._standby: Standby | None = None
        self._preflight_step: Preflight | None = None
        self._lost: tuple[str, ...] = ()
        self._returned: tuple[str, ...] = ()
        self._refused: frozenset[int] = frozenset()
        self._counters = Counters()
        self._carries_on = False
        self._num_restarts = 0
        self._container = ""
        self._latest_at_job_start = run.latest_checkpoint(plan.files)
        self._latest_at_start = self._latest_at_job_start
        self._requests.on_signal = self._on_signal

    # ---- the life of a job

    def run(self) -> Decision:
        """Return when no further attempt is to follow."""
        decision = self._count()
        if decision is None and preflight.is_wanted(self._plan):
            self._preflight()
        while decision is None or decision.kind == decide.RESTART:
            if decision is not None:
                self._requests.pause(decision.delay_s)
                self._next(decision)
            self._open()
            code, guard, took_s = self._run_step()
            decision = self._close(code, guard, took_s)
            if decision.kind != decide.RESTART:
                self._end_standby()
        return decision

    def _preflight(self) -> list[BadNode]:
        """Check all nodes before the ranks start; those that it finds bad."""
        plan, loop = self._plan, self._loop
        check = Preflight(plan, loop, self._requests, self._journal, self._output)
        self._preflight_step = check
        return preflight.bad_nodes(check.run())

    def _count(self) -> Decision | None:
        """Take over the counters; a decision if they say that the run would go on for ever."""
        past = history.read(self._files)
        attempt = self._settings.number("DDP_ATTEMPT")
        self._counters = past.counters
        self._carries_on = past.carries_on and not self._job.is_own_command
        # Slurm requeues a job whose node died, too: then nobody was left to decide and to count.
        if self._job.restart_count == 0:
            return None
        self._report_lost_script(past.unreported(attempt))
        silent = past.num_silent(attempt)
        self._counters = self._counters._replace(idle=self._counters.idle + silent)
        if silent > self._job.limits.max_idle_restarts:
            return decide.give_up_before_start(self._job, silent)
        return None

    def _report_lost_script(self, start: history.Unreported | None) -> None:
        """When the script's own node dies nobody tells: the next start does, if Slurm knows."""
        here = self._here
        how = end_of_script(start, self._backend, here.slurm) if here.has_client else None
        if start is not None and how:
            self._journal.write_of(
                start.attempt, "lost_node", node=start.node, how=how, afterwards=True
            )
            info(
                f"start {start.attempt} ended with node {start.node}, where its script ran: {how};"
                " Slurm has requeued the job"
            )

    # ---- one attempt

    def _open(self) -> None:
        self._container = self._container or self._settings["DDP_LAUNCH_ID"]
        self._latest_at_start = run.latest_checkpoint(self._files)
        self._journal.open(self._settings.number("DDP_ATTEMPT"))
        image = self._job.image
        self._journal.write(
            "start",
            job_id=self._job.id,
            run=self._files.name,
            place=self._backend.place,
            nodes=self._nodes,
            world_size=self._layout.world_size,
            command=secrets.hide_words(self._words),
            restart_count=self._job.restart_count,
            image=image or None,
            image_digest=run.image_digest(image) or None,
        )
        self._journal.write("settings", settings=show.record(self._settings, self._environ))

    @property
    def _environ(self) -> dict[str, str]:
        return self._settings.environ(self._here.environ)

    @property
    def _words(self) -> list[str]:
        """What the ranks run.

        Whatever the user wanted to begin with (--resume none, another run's checkpoint), a later
        start of our trainer carries on with what this run has itself.
        """
        words = self._plan.arguments.words
        return [*words, "--resume", "auto"] if self._carries_on else words

    @property
    def _request(self) -> Step:
        return Step(
            self._words,
            self._environ,
            self._layout,
            self._nodes,
            self._settings["DDP_OUT"],
            is_restart=self._num_restarts > 0,
            # A node that comes back may have lost part of what it had unpacked.
            container="" if self._plan.is_elastic else self._container,
        )

    def _prepare_backend(self) -> None:
        """Let the backend make ready what all attempts use; a signal ends the waiting."""
        ready: list[bool] = []
        environ = self._environ
        self._loop.in_background(lambda: self._backend.prepare(environ), lambda: ready.append(True))
        self._loop.run(lambda: ready or self._requests.stop_signal)

    def _run_step(self) -> tuple[int, str, float]:
        """Run the ranks; the step's code, why the guard ended it, and how long it took.

        A signal that came before the ranks starts none.
        """
        if not self._num_restarts and not self._plan.is_elastic:
            self._prepare_backend()
        began_s = time.monotonic()
        if self._requests.stop_signal:
            return codes.STOPPED, "", 0.0
        settings, grace_s = self._settings, self._settings.number("DDP_GRACE")
        request = self._request
        if self._standby and not self._standby.fits(request):
            self._end_standby()
        kind = ElasticStep if self._plan.is_elastic else RunningStep
        step = kind(
            self._loop,
            self._backend,
            request,
            self._journal,
            self._output,
            grace_s=grace_s,
            standby=self._standby,
        )
        self._step, self._standby = step, None
        prepare = self._loop.every(_STANDBY_S, lambda: self._prepare(prepare))
        traces = Traces(
            self._files,
            settings["DDP_OUT"],
            self._job.id,
            has_monitor=settings.is_on("DDP_MONITOR"),
            interval_s=settings.number("DDP_MONITOR_INTERVAL"),
        )
        others = [node for node in self._nodes if node != self._here.node]
        master = "{MASTER_ADDR}:{MASTER_PORT}".format_map(self._environ)
        hang = HangWatch(self._journal, len(self._nodes), master)
        guard = Guard(
            self._loop, self._backend, step, self._journal, traces=traces, nodes=others, hang=hang
        )
        returns = Returns(
            self._loop,
            self._backend,
            step,
            self._journal,
            self._job,
            interval_s=settings.number("DDP_MONITOR_INTERVAL"),
            lost=self._lost,
            refused=self._refused,
        )
        self._loop.run(guard.is_over)
        returns.stop()
        self._returned = returns.found
        self._lost = tuple(node for node in self._lost if node not in returns.spare)
        guard.stop()
        prepare.cancel()
        step.close()
        self._step = None
        return step.code, guard.why, time.monotonic() - began_s

    def _prepare(self, timer: Timer) -> None:
        """Have the next attempt's ranks wait, as soon as this one's train."""
        if not self._journal.reports.has_trained:
            return
        timer.cancel()
        may_restart = self._counters.restarts < self._job.limits.max_restarts
        is_wanted = self._settings.is_on("DDP_WARM") and not self._job.is_own_command
        if may_restart and is_wanted and self._backend.has_standby:
            values = copy.deepcopy(self._settings)
            settings.note_attempt(values, values.number("DDP_ATTEMPT") + 1, self._job.id)
            environ = {**values.environ(self._here.environ), "DDP_STANDBY": "1"}
            step = self._request._replace(environ=environ, is_restart=True, is_standby=True)
            self._standby = Standby(self._loop, self._backend, step)

    def _end_standby(self) -> None:
        if self._standby:
            self._standby.end()
            self._standby = None

    def _close(self, code: int, guard: str, took_s: float) -> Decision:
        """The end of the step, who failed, what follows, and the record of it."""
        steps.sweep(self._loop, self._settings["DDP_LAUNCH_ID"], self._plan.temporary)
        self._output.flush()
        self._journal.close()
        # Where a rank did not come up, its node may have unpacked half of the image.
        if self._journal.reports.num_started < self._layout.world_size:
            self._container = ""
        end = self._ending(code, guard, took_s)
        first = end.failure.first
        if first is not None and first.rank is not None:
            self._journal.write(
                "first_failure",
                rank=first.rank,
                node=first.node,
                code=first.code,
                signal=first.signal,
            )
        decision = decide.decide(self._job, end, self._counters, self._ask)
        self._counters, self._lost = decision.counters, decision.exclude
        self._report(decision, end)
        return decision

    def _ask(self) -> str:
        return self._here.slurm.job_info() or ""

    def _ending(self, code: int, guard: str, took_s: float) -> Ending:
        self._loop.turn(0)  # a signal that has just arrived is known from here on
        events, limits = self._journal.reports.events, self._job.limits
        if self._plan.is_elastic and code == codes.FINISHED:
            found = classify(events, code=code)  # whoever left on the way
            return self._ended(found, took_s)
        suspected = failure.suspected_nodes(events)
        if limits.min_nodes and code != codes.FINISHED:  # it came back, and was lost again
            seen = {event.get("node") for event in events}
            suspected += [node for node in self._nodes if node not in seen]
        may_have_dropped = limits.is_no_kill and code != codes.FINISHED
        for node, how in lost_nodes(
            self._backend, suspected, self._nodes, may_have_dropped=may_have_dropped
        ):
            self._journal.write("lost_node", node=node, how=how)
        found = classify(events, self._log_end, step_code=code, guard=guard)
        if found.code == codes.USAGE:
            self._refused |= {self._layout.num_nodes}
        is_foreign = self._backend.has_own_image and code == _NO_PROGRAM
        return self._ended(found, took_s, is_foreign=is_foreign and found.end is None)

    def _ended(self, found: Failure, took_s: float, *, is_foreign: bool = False) -> Ending:
        return Ending(
            found,
            codes.USAGE if is_foreign else found.code or codes.FINISHED,
            self._requests.stop_signal,
            self._layout,
            run.latest_checkpoint(self._files),
            self._latest_at_start,
            self._latest_at_job_start,
            lost=tuple(dict.fromkeys(node for node, _ in found.lost)),
            lost_before=self._lost,
            took_s=took_s,
            returned=self._returned,
            refused=self._refused,
            is_foreign_image=is_foreign,
        )

    def _log_end(self, rank: int) -> str:
        begin = self._journal.reports.log_offset(rank)
        return plain.tail(self._files.rank_log(rank), _LOG_END, begin)

    def _report(self, decision: Decision, end: Ending) -> None:
        self._journal.write(
            "decision",
            decision=decision.kind,
            reason=decision.reason,
            restarts=decision.counters.restarts,
            idle=decision.counters.idle,
            exclude=",".join(decision.exclude) or None,
            carries_on=self._carries_on or end.latest != self._latest_at_job_start,
            cause=decision.cause,
        )
        self._journal.write("end", code=decision.code)
        self._journal.flush()
        self._show_log(end.failure, decision.code)
        if decision.kind == decide.RESTART:
            info(decision.words)
        run.compose_record(self._here.root, self._files, self._environ)

    def _show_log(self, found: Failure, code: int) -> None:
        """Show the end of the failed rank's log, before the line that names it.

        Lines may be as long as a progress bar that never ends one.
        """
        first = found.first
        if first is None or first.rank is None or found.lost or code == codes.STOPPED:
            return
        path = self._files.rank_log(first.rank)
        info(f"the end of {path}:")
        lines = plain.tail(path, _LOG_END).splitlines()[-_SHOWN_LINES:]
        write(2, "".join(f"    {line}\n" for line in lines))

    # ---- the next attempt

    def _next(self, decision: Decision) -> None:
        """Give the next attempt what is its own: number, token, nodes and port."""
        self._num_restarts += 1
        values = self._settings
        settings.note_attempt(values, values.number("DDP_ATTEMPT") + 1, self._job.id)
        if self._requests.stop_signal:
            return
        if run.latest_checkpoint(self._files) != self._latest_at_job_start:
            self._carries_on = not self._job.is_own_command
        self._choose_nodes(decision)
        try:
            rendezvous.resolve(values, self._backend, self.search())
        except UsageError as error:  # the old port is as good: its owner is gone
            info(one_line(error))

    def _choose_nodes(self, decision: Decision) -> None:
        """Choose the next attempt's nodes: spare ones in place of lost ones, else fewer."""
        left = [node for node in self._plan.nodes if node not in decision.exclude]
        left = decide.choose_nodes(left, self._nodes, decision.num_nodes)
        if left == self._nodes:
            return
        self._nodes = left
        self._layout = self._layout.on(len(self._nodes))
        values = self._settings
        settings.note_world(values, self._layout)
        values.note("DDP_NUM_NODES", str(len(self._nodes)), values.origins["DDP_NUM_NODES"])

    def search(self) -> rendezvous.Search:
        """Where the search for this attempt's port begins."""
        attempt = self._settings.number("DDP_ATTEMPT")
        return rendezvous.search(
            self._here, self._nodes, attempt, is_restart=self._num_restarts > 0
        )

    # ---- signals, and the end

    def _on_signal(self, name: str) -> None:
        self._journal.write("signal", signal=name)
        if name == "USR1":
            info("SIGUSR1: the time limit is near, asking every rank for a checkpoint")
        else:
            info(f"SIG{name}: ending every rank")
        if self._step is not None and name == "USR1":
            self._step.ask_for_checkpoint()
        elif self._step is not None:
            self._step.stop()

    def break_off(self) -> None:
        """This script itself fails: what it started ends, and the record says so."""
        if self._step is not None:
            self._step.end()
        if self._preflight_step is not None:
            self._preflight_step.break_off()
        self._end_standby()
        steps.sweep(self._loop, self._settings["DDP_LAUNCH_ID"], self._plan.temporary)
        self._journal.write("end", code=codes.FAILED)
        self._journal.flush()
        run.compose_record(self._here.root, self._files, self._environ)


def end_of_script(start: history.Unreported | None, backend: Backend, slurm: Slurm) -> str | None:
    """How the node was lost on which a start's script ran; None if it was not, or nobody knows."""
    if start is None:
        return None
    return backend.lost(start.node) or slurm.rebooted(start.node, start.time)
