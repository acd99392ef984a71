"""What every way to start ranks offers to the supervisor, and what it knows of the job.

A new one is a file beside this one and a line in `jobs/backends/registry.py`; its tests subclass
`Conformance` in tests/jobs/test_backends.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, NamedTuple

from jobs.processes import die_with_parent

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from jobs.backends.slurm import Slurm


class Surroundings(NamedTuple):
    """Where the batch script runs, as far as it can be seen from within."""

    root: str
    """The project: jobs/, trainer/ and monitor/ lie here."""
    script: str
    """The batch script as it was started, which may be a copy in Slurm's spool directory."""
    words: list[str]
    """Its arguments."""
    environ: dict[str, str]
    """What the ranks get, settings aside."""
    slurm: Slurm
    node: str
    submit_dir: str
    is_under_slurm: bool
    is_in_container: bool
    is_interactive: bool
    """In salloc or srun --pty, where other steps may run beside ours."""
    has_client: bool
    """Whether Slurm's programs work here."""
    info: str
    """What the controller says of the job; empty without a client."""
    num_nodes: int
    """Of the allocation; 1 without one."""
    num_local_ranks: int = 0
    """Ranks of a node that were asked for; 0: a rank per task."""

    @property
    def launcher(self) -> str:
        """What starts a rank."""
        return f"{self.root}/jobs/launcher.sh"


class Layout(NamedTuple):
    """How many launchers the step has, and how many ranks they make."""

    num_nodes: int
    num_tasks: int
    num_local_tasks: int
    """Of one node, the fullest."""
    num_local_ranks: int

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        if self.num_local_ranks == self.num_local_tasks:
            return self.num_tasks
        return self.num_nodes * self.num_local_ranks

    @property
    def is_even(self) -> bool:
        """Whether every node has as many tasks."""
        return self.num_tasks == self.num_nodes * self.num_local_tasks

    def on(self, num_nodes: int) -> Layout:
        """The same on another number of nodes."""
        return self._replace(num_nodes=num_nodes, num_tasks=num_nodes * self.num_local_tasks)


class Step(NamedTuple):
    """All ranks of one attempt, before they start."""

    arguments: list[str]
    """The trainer's options, or -- and a command of the user's own."""
    environ: dict[str, str]
    """The ranks' environment, settings included."""
    layout: Layout
    nodes: list[str]
    out: str
    """DDP_OUT."""
    is_restart: bool
    container: str = ""
    """What names the containers that attempts share, whole since all ranks of each came up."""
    is_standby: bool = False
    """Its ranks wait on their standard input for the attempt to begin."""

    @property
    def is_own_command(self) -> bool:
        """Whether the ranks run a command of the user's own."""
        return self.arguments[:1] == ["--"]

    @property
    def stdin(self) -> int:
        """What the processes that start it get for standard input, as subprocess has it."""
        return subprocess.PIPE if self.is_standby else subprocess.DEVNULL

    def of_node(self, rank: int, *, is_restart: bool = False) -> Step:
        """The step of one node, where each has its own."""
        return self._replace(
            environ={**self.environ, "DDP_TASK_RANK": str(rank)},
            layout=Layout(1, 1, 1, 1),
            nodes=[self.nodes[rank]],
            is_restart=is_restart or self.is_restart,
        )


class Address(NamedTuple):
    """Where ranks can reach a node, and where that was found."""

    text: str
    origin: str


class Backend(ABC):
    """A way to start the ranks of a job, and to reach them.

    Defaults are those of the in-place backend: one machine, ranks are children of this process.
    """

    place: str
    """Its name in the events."""
    is_in_place = False
    has_standby = False
    """Whether the next attempt's ranks can wait beside this one's."""
    has_own_image = False
    """The ranks run in an image into which this script cannot look."""

    def __init__(self, here: Surroundings) -> None:
        """Check that ranks can be started so. Raises UsageError and Exit."""
        self._here = here

    @property
    def is_bare(self) -> bool:
        """Whether the ranks run on bare machines, as this script does."""
        return not (self._here.is_in_container or self.has_own_image)

    @classmethod
    @abstractmethod
    def fits(cls, here: Surroundings) -> bool:
        """Whether ranks are started so here."""

    @abstractmethod
    def layout(self) -> Layout:
        """Count the launchers and the ranks that the whole allocation gets. Raises UsageError."""

    @abstractmethod
    def nodes(self) -> list[str]:
        """Name the nodes of the allocation, in the order of their ranks. Raises UsageError."""

    @abstractmethod
    def command(self, step: Step) -> list[str]:
        """Give what starts the step, as it is shown to people. Raises UsageError."""

    @abstractmethod
    def start(self, step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        """Start the step; its standard output goes into the pipe, and holds the ranks' reports.

        The processes of a step that waits have a pipe for standard input.
        """

    def prepare(self, environ: Mapping[str, str]) -> None:  # noqa: B027 -- few need it
        """Make ready what all attempts use, before the first. It may take a while."""

    def note_step(self, step_id: int | None) -> None:  # noqa: B027 -- few need it
        """Take the step's number, once it is known; None: the step is over."""

    def end(self, step_id: int | None) -> bool:
        """Tell the ranks, not those who started them, to end; False where that is no different."""
        del step_id
        return False

    def ask_for_reports(self, step_id: int | None) -> None:  # noqa: B027 -- one node reports anyway
        """Have every node's watchdog report where its ranks are. It may take a while."""

    def kill(self, step_id: int | None) -> None:  # noqa: B027 -- its processes are killed anyway
        """Kill what runs of the step on every node that can be reached. It may take a while."""

    def lost_of(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        """Pick those of the nodes that are lost, and say how; of all it takes as long as of one."""
        del nodes
        return []

    def lost(self, node: str) -> str | None:
        """Say how a node is lost; None if it is not. It may take a while."""
        return dict(self.lost_of([node])).get(node)

    def dropped(self, nodes: Sequence[str]) -> list[str]:
        """Pick those of the nodes that the job no longer has, though they may answer."""
        del nodes
        return []

    def is_back(self, node: str) -> bool:
        """Whether ranks can be started on a node that was lost. It may take a while."""
        del node
        return False

    def probe_words(self, node: str, words: Sequence[str], *, is_restart: bool) -> list[str]:
        """Say how a program is run on a node."""
        del node, is_restart
        return list(words)

    def first_node(self, nodes: Sequence[str]) -> str:
        """Name the node of rank 0."""
        return nodes[0]

    def address(self, node: str) -> Address | None:
        """Give what the place itself says of where a node is; None where it does not say."""
        del node
        return None


def before_exec() -> Callable[[], None]:
    """Give what a child does between fork and exec.

    The terminal's keys reach this script alone, which acts on them; and a child that would be left
    behind by a killed script gets SIGTERM.
    """
    die = die_with_parent(signal.SIGTERM)

    def prepare() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGQUIT, signal.SIG_IGN)
        die()

    return prepare


def tmp_dir(environ: Mapping[str, str], *, is_in_container: bool) -> str:
    """Where temporary files go. In a container a directory that the host's prolog made is not."""
    wanted = environ.get("TMPDIR") or "/tmp"  # noqa: S108 -- as every program here
    return "/tmp" if is_in_container and not os.path.isdir(wanted) else wanted  # noqa: S108
