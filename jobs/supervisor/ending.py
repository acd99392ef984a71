"""How an attempt ended, and what is the same in all attempts of a job: values alone."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from jobs.backends.base import Layout
    from rundir.failure import Failure
    from rundir.nodes import BadNode


class Limits(NamedTuple):
    """How far a job goes by itself."""

    max_restarts: int
    max_idle_restarts: int
    may_requeue: bool
    is_no_kill: bool
    """Whether Slurm leaves the job its other nodes when it loses one."""
    min_nodes: int | None = None
    """The fewest nodes of an elastic run; None: it is not one, and takes no node back."""


class Job(NamedTuple):
    """What stays the same in all attempts."""

    id: str
    run_dir: str
    image: str
    limits: Limits
    num_nodes_allocated: int
    num_nodes_wanted: int
    is_own_command: bool
    is_under_slurm: bool
    is_interactive: bool
    has_client: bool
    restart_count: int
    """How often Slurm has requeued it."""

    @property
    def go_on(self) -> str:
        """What a person can do."""
        return f"to go on: start again with DDP_RUN_NAME={self.run_dir.rpartition('/')[2]}"


class Counters(NamedTuple):
    """What one attempt leaves to the next."""

    restarts: int = 0
    """Since the last new checkpoint."""
    idle: int = 0
    """Starts in a row that brought no new checkpoint."""


class Ending(NamedTuple):
    """How an attempt ended."""

    failure: Failure
    code: int
    stop_signal: str | None
    """Who asked the job to stop did it so."""
    layout: Layout
    latest: str
    """The newest checkpoint's name; empty if there is none."""
    latest_at_start: str
    latest_at_job_start: str
    lost: tuple[str, ...]
    """Nodes that this attempt lost."""
    lost_before: tuple[str, ...]
    took_s: float
    returned: tuple[str, ...] = ()
    """Nodes that are back, and for which the ranks were asked to stop."""
    refused: frozenset[int] = frozenset()
    """Numbers of nodes that this run cannot use: it ended with 64 on them."""
    is_foreign_image: bool = False
    """The program that Slurm did not find is our launcher, in an image that is not ours."""
    bad: tuple[BadNode, ...] = ()
    """Nodes that this attempt showed to be bad, and that leave the job."""
    bad_before: tuple[BadNode, ...] = ()
    has_begun: bool = True
    """Whether there was an attempt: nodes may be bad before the first."""

    @property
    def exclude(self) -> tuple[str, ...]:
        """Nodes to do without from now on."""
        before = tuple(n for n in self.lost_before if n not in self.returned)
        bad = (one.node for one in (*self.bad_before, *self.bad))
        return tuple(dict.fromkeys((*before, *self.lost, *bad)))
