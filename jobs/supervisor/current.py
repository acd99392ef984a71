"""The job that runs: its loop and journal, the current attempt, and what earlier ones left it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jobs import processes
from jobs.backends.base import Step
from jobs.messages import write_some
from jobs.sink import Sink
from jobs.supervisor import run, settings
from jobs.supervisor.bad_nodes import Past
from jobs.supervisor.ending import Counters
from jobs.supervisor.journal import Journal
from rundir import paths
from rundir.plain import names_in

if TYPE_CHECKING:
    from jobs.loop import Loop
    from jobs.supervisor.plan import Plan
    from jobs.supervisor.signals import Requests
    from rundir.nodes import BadNode

LAST_LINES_S = 5
"""How long the job's log may take for the ranks' last lines."""
_MAX_PENDING = 64 << 20
"""Bytes of output that wait for the reader of this script's standard output."""


def _write(data: bytes) -> None:
    while data:
        data = data[write_some(1, data) :]


class Current:
    """What the parts of the supervisor share while attempts run.

    Args:
        plan: What stays the same in all attempts.
        loop: Calls back when reports arrive, and at their time.
        requests: What signals asked the job for.

    """

    def __init__(self, plan: Plan, loop: Loop, requests: Requests) -> None:
        """Begin as planned."""
        self.plan, self.loop, self.requests = plan, loop, requests
        self.journal = Journal(loop, plan.files, plan.here.node)
        self.output = Sink(_write, loop.wake, _MAX_PENDING)
        """This script's standard output: a reader that is slow or gone does not hold up the job."""
        self.settings = plan.settings
        self.layout = plan.layout
        self.nodes = plan.nodes[: plan.layout.num_nodes]
        self.counters = Counters()
        self.lost: tuple[str, ...] = ()
        """Nodes that Slurm or the network has taken, and may give back."""
        self.bad: tuple[BadNode, ...] = ()
        """Nodes that have left the job, for good."""
        self.past = Past()
        """What earlier attempts showed of the nodes."""
        self.refused: frozenset[int] = frozenset()
        """Numbers of nodes that this run cannot use."""
        self.carries_on = False
        """Whether our trainer resumes from what this run has itself."""
        self.num_restarts = 0
        self.container = ""
        """What names the containers that attempts share; empty: new ones."""
        self.latest_at_job_start = run.latest_checkpoint(plan.files)
        self.latest_at_start = self.latest_at_job_start

    @property
    def attempt(self) -> int:
        """The current attempt's number in the run, from 1 on."""
        return self.settings.number("DDP_ATTEMPT")

    @property
    def environ(self) -> dict[str, str]:
        """The environment of the attempt's ranks."""
        return self.settings.environ(self.plan.here.environ)

    @property
    def words(self) -> list[str]:
        """The arguments of the attempt's ranks.

        Whatever the run began with (--resume none, another run's checkpoint), a later start of our
        trainer carries on with what this run has itself.
        """
        words = self.plan.arguments.words
        return [*words, "--resume", "auto"] if self.carries_on else words

    @property
    def step(self) -> Step:
        """The attempt's ranks, as a backend starts them."""
        return Step(
            self.words,
            self.environ,
            self.layout,
            self.nodes,
            self.settings["DDP_OUT"],
            is_restart=self.num_restarts > 0,
            # A node that comes back may have lost part of what it had unpacked.
            container="" if self.plan.is_elastic else self.container,
        )

    def use_nodes(self, nodes: list[str]) -> None:
        """Run on these nodes from now on."""
        if nodes == self.nodes:
            return
        self.nodes = nodes
        self.layout = self.layout.on(len(nodes))
        settings.note_world(self.settings, self.layout)
        origin = self.settings.origins["DDP_NUM_NODES"]
        self.settings.note("DDP_NUM_NODES", str(len(nodes)), origin)

    def flush(self) -> None:
        """Wait until all output is written, but not for ever."""
        self.loop.run(lambda: self.output.is_idle, LAST_LINES_S)

    def sweep(self) -> None:
        """End the attempt's processes on this node, and remove what killed agents left."""
        launch_id = self.settings["DDP_LAUNCH_ID"]
        token = f"DDP_LAUNCH_ID={launch_id}"
        processes.end_all(
            lambda: processes.with_descendants(processes.processes_with(token)), 2, self.loop.pause
        )
        for parent in {paths.MEMORY, self.plan.temporary}:
            _remove(parent, paths.heartbeats_prefix(launch_id))

    def remove_snapshots(self) -> None:
        """Remove the job's snapshots from this node's memory: they are for its restarts only."""
        _remove(paths.MEMORY, paths.snapshots_prefix(self.settings["DDP_LAUNCH_ID"]))


def _remove(parent: str, prefix: str) -> None:
    """Remove the directories in `parent` whose names begin so."""
    for name in names_in(parent):
        if name.startswith(prefix):
            import shutil  # noqa: PLC0415 -- rarely needed

            shutil.rmtree(f"{parent}/{name}", ignore_errors=True)
