"""The attempts: one start of all ranks after the other, within the allocation this job has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs.messages import UsageError, info
from jobs.supervisor import decide, history, rendezvous, run, settings, show
from jobs.supervisor.closing import Closing
from jobs.supervisor.running import Ranks
from rundir import secrets

if TYPE_CHECKING:
    from collections.abc import Sequence

    from jobs.backends.base import Backend
    from jobs.backends.slurm import Slurm
    from jobs.supervisor.current import Current
    from jobs.supervisor.decide import Decision
    from jobs.supervisor.preflight import Preflight
    from rundir.nodes import BadNode


class Attempts:
    """Runs one attempt after the other, until the decision is another one than to restart."""

    def __init__(self, now: Current) -> None:
        """Start nothing yet."""
        self._now, self._plan, self._settings = now, now.plan, now.settings
        self._job, self._files, self._journal = now.plan.job, now.plan.files, now.journal
        self._ranks = Ranks(now)
        self._closing = Closing(now)
        self._preflight: Preflight | None = None
        now.requests.on_signal = self._on_signal

    # ---- the life of a job

    def run(self) -> Decision:
        """Run all attempts; return what was decided after the last one."""
        decision = self._take_over()
        if decision is None:
            self._ranks.prepare_backend()
            if self._plan.wants_preflight:
                decision = self._leave_out(self._check_nodes())
        while decision is None or decision.kind == decide.RESTART:
            if decision is not None:
                self._now.requests.pause(decision.delay_s)
                self._prepare_next(decision)
            self._open()
            ran = self._ranks.run()
            self._ranks.sweep()
            decision = self._closing.close(ran)
            if decision.kind != decide.RESTART:
                self._ranks.end_standby()
        self._closing.leaving.finish()
        return decision

    def _take_over(self) -> Decision | None:
        """Take over what earlier starts of the run left; return a decision if none may follow."""
        past, attempt = history.read(self._files), self._now.attempt
        self._now.counters = past.counters
        self._now.carries_on = past.carries_on and not self._job.is_own_command
        self._now.past = past.past(attempt)
        # Slurm also requeues a job whose node died: then no supervisor decided and counted.
        if self._job.restart_count == 0:
            return None
        self._report_lost_script(past.unreported(attempt))
        silent = past.num_silent(attempt)
        self._now.counters = self._now.counters._replace(idle=self._now.counters.idle + silent)
        if silent > self._job.max_idle_restarts:
            return decide.give_up_before_start(self._job, silent)
        return None

    def _report_lost_script(self, start: history.Unreported | None) -> None:
        """Report that the last start ended with its script's node, if Slurm knows: it could not."""
        here = self._plan.here
        how = end_of_script(start, self._plan.backend, here.slurm) if here.has_client else None
        if start is not None and how:
            of_it = {"attempt": start.attempt, "node": start.node}
            self._journal.write("lost_node", **of_it, how=how, afterwards=True)
            info(
                f"start {start.attempt} ended with node {start.node}, where its script ran: {how};"
                " Slurm has requeued the job"
            )

    def _check_nodes(self) -> list[BadNode]:
        """Check all nodes before the ranks start; return the bad ones."""
        from jobs.supervisor.preflight import Preflight  # noqa: PLC0415 -- not for jobs on one node

        self._preflight = Preflight(self._now)
        found = self._preflight.run()
        return found.bad if found else []

    # ---- one attempt

    def _open(self) -> None:
        self._now.container = self._now.container or self._settings["DDP_LAUNCH_ID"]
        self._now.latest_at_start = run.latest_checkpoint(self._files)
        self._journal.open(self._now.attempt)
        image = self._job.image
        self._journal.write(
            "start",
            job_id=self._job.id,
            run=self._files.name,
            place=self._plan.backend.place,
            nodes=self._now.nodes,
            world_size=self._now.layout.world_size,
            command=secrets.hide_words(self._now.words),
            restart_count=self._job.restart_count,
            image=image or None,
            image_digest=run.image_digest(image) or None,
        )
        self._journal.write("settings", settings=show.record(self._settings, self._now.environ))

    # ---- the next attempt

    def _prepare_next(self, decision: Decision) -> None:
        """Give the next attempt what is its own: number, token, nodes and port."""
        self._now.num_restarts += 1
        settings.note_attempt(self._settings, self._now.attempt + 1, self._job.id)
        if self._now.requests.stop_signal:
            return
        if run.latest_checkpoint(self._files) != self._now.latest_at_job_start:
            self._now.carries_on = not self._job.is_own_command
        self._choose_nodes(decision)

    def _leave_out(self, bad: Sequence[BadNode]) -> Decision | None:
        """Take bad nodes out before the first attempt; return a decision if it cannot start."""
        decision = self._closing.before_start(bad)
        if decision is None or decision.kind != decide.RESTART:
            return decision
        self._choose_nodes(decision)
        return None

    def _choose_nodes(self, decision: Decision) -> None:
        """Choose the next attempt's nodes: spare ones in place of others, else fewer."""
        left = [node for node in self._plan.nodes if node not in decision.exclude]
        self._now.use_nodes(decide.choose_nodes(left, self._now.nodes, decision.num_nodes))
        try:
            rendezvous.resolve(
                self._settings,
                self._plan.backend,
                self._plan.here,
                self._now.nodes,
                is_restart=self._now.num_restarts > 0,
            )
        except UsageError as error:  # keep the old port: its owner has ended
            info(str(error))

    # ---- signals, and the end

    def _on_signal(self, name: str) -> None:
        self._journal.write("signal", signal=name)
        self._ranks.take(name)  # before lines that may have to wait for their reader
        if name == "USR1":
            info("SIGUSR1: the time limit is near, asking every rank for a checkpoint")
            self._warn_of_time()
        else:
            info(f"SIG{name}: ending every rank")

    def _warn_of_time(self) -> None:
        """Warn if the time limit is near before the first step: every start would end so."""
        is_first = not (self._now.num_restarts or self._journal.reports.has_trained)
        if is_first and not self._job.is_own_command:
            info(
                "warning: a job must have more time than sbatch --signal warns ahead, 120 s by"
                " default; found the warning before its first step; raise --time, or lower the 120"
                " (--signal=B:USR1@SECONDS)"
            )

    def break_off(self) -> None:
        """End what was started, and record that: this script itself fails."""
        self._ranks.break_off()
        if self._preflight is not None:
            self._preflight.break_off()
        self._closing.leaving.break_off()
        self._closing.break_off()


def end_of_script(start: history.Unreported | None, backend: Backend, slurm: Slurm) -> str | None:
    """Say how the node of a start's script was lost; None if it was not, or that is unknown."""
    if start is None:
        return None
    return backend.lost(start.node) or slurm.rebooted(start.node, start.time)
