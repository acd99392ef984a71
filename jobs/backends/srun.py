"""srun: the ranks of a Slurm job on the machines themselves.

A task a rank, or one task a node, whose ranks torchrun starts: the launchers see
DDP_NPROC_PER_NODE and that they are alone on their node, and `jobs/agent/node.py` runs torchrun.
"""

from __future__ import annotations

import signal
import subprocess
from contextlib import suppress
from typing import TYPE_CHECKING

from jobs.backends import scontrol, slurm
from jobs.backends.base import Address, Backend, Layout, Step, Surroundings, before_exec
from jobs.messages import UsageError
from rundir.hang import ASK
from rundir.plain import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

_CREATION_S = 120
"""How long Slurm may take to start a step once more."""
_PROBE_S, _PROBE_AGAIN_S = 120, 20
"""Between two attempts nobody waits so long for a node that may be gone."""
_DELIVERED = "Invalid job id specified"
"""What scancel of Slurm 22.05 says of a step on some of the job's nodes, which gets the signal."""
_OF_OUTPUT = ("SLURM_LABELIO", "SLURM_STDOUTMODE", "SLURM_UNBUFFEREDIO", "SRUN_OUTPUT")
"""The user's options for what srun prints: the ranks' reports travel on it, line by line."""


class Srun(Backend):
    """Starts one step, which ends at its first bad exit. Raises UsageError."""

    place = "bare-srun"

    def __init__(self, here: Surroundings) -> None:
        """Take the job as it is."""
        super().__init__(here)
        self._slurm = here.slurm
        self._is_task_a_node = here.slurm.num_tasks == here.num_nodes
        # torchrun starts its ranks itself.
        self.has_standby = not (self._is_task_a_node and here.num_local_ranks > 1)
        self._mpi = here.environ.get("DDP_MPI", "")
        if self._mpi:
            self._check_mpi()

    def _check_mpi(self) -> None:
        known = self._slurm.mpi_types()
        if self._mpi not in known:
            raise UsageError(
                "DDP_MPI must be a type that `srun --mpi=list` shows",
                f"'{self._mpi}' where it shows {', '.join(known) or 'none'}",
                "set one of them, or unset it",
            )

    @classmethod
    def fits(cls, here: Surroundings) -> bool:
        """Where the batch script is on the host, and the client answers."""
        return here.has_client and not here.is_in_container

    def layout(self) -> Layout:
        """A rank per task that Slurm gave, or as many as were asked for in one task a node."""
        num_nodes, num_tasks = self._here.num_nodes, self._slurm.num_tasks
        num_local_tasks = -(-num_tasks // num_nodes)
        num_local_ranks = self._here.num_local_ranks or num_local_tasks
        if num_local_ranks != num_local_tasks and not self._is_task_a_node:
            raise UsageError(
                "DDP_NPROC_PER_NODE must agree with the tasks per node unless there is one",
                f"{num_local_ranks} and {num_local_tasks}",
                "unset it, or give --ntasks-per-node=1",
            )
        return Layout(num_nodes, num_tasks, num_local_tasks, num_local_ranks)

    def nodes(self) -> list[str]:
        """The nodes in Slurm's own order."""
        environ = self._here.environ
        listed = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST") or ""
        nodes = self._slurm.hostnames(listed)
        if not nodes:
            raise UsageError(
                "scontrol must tell the job's nodes", f"none of '{listed}'", "see its words above"
            )
        return nodes

    def command(self, step: Step) -> list[str]:
        """The whole command of srun."""
        return ["srun", *self._options(step), *self._launch(step), *step.arguments]

    def _launch(self, step: Step) -> list[str]:
        """What else srun needs here, and the launcher."""
        del step
        return [self._here.launcher]

    def _options(self, step: Step) -> list[str]:
        layout = step.layout
        # --wait=0: no site's WaitTime ends those that still write their checkpoint.
        options = ["--kill-on-bad-exit=1", "--wait=0", f"--nodes={layout.num_nodes}"]
        options += [f"--ntasks={layout.num_tasks}", "--export=ALL"]
        options.append("--input=all" if step.is_standby else "--input=none")
        if step.environ.get("SRUN_CPUS_PER_TASK"):
            options.append(f"--cpus-per-task={step.environ['SRUN_CPUS_PER_TASK']}")
        if self._mpi and layout.num_local_ranks != layout.num_local_tasks:
            raise UsageError(
                "DDP_MPI needs a task for each rank",
                f"{layout.num_local_ranks} ranks a task, which MPI would take for one",
                "use --ntasks-per-node instead of DDP_NPROC_PER_NODE",
            )
        # Our own ranks need no MPI; where it is a site's default, its library would have to be in
        # the image.
        if self._mpi:
            options.append(f"--mpi={self._mpi}")
        elif not step.is_own_command:
            options.append("--mpi=none")
        # A step that was killed may hold on to its share of the nodes for a while.
        if self._here.is_interactive or step.is_restart:
            options.append("--overlap")
        # Nor may it wait for ever for a node that Slurm counts as busy or no longer as the job's.
        if step.is_restart:
            options.append(f"--immediate={_CREATION_S}")
        if layout.num_nodes < self._here.num_nodes:
            options.append(f"--nodelist={','.join(step.nodes)}")
            # GPUs that were asked for as a sum are more than these nodes have.
            gpus = slurm.number(step.environ, "SLURM_GPUS_ON_NODE")
            if step.environ.get("SLURM_GPUS") and gpus:
                options.append(f"--gpus={layout.num_nodes * gpus}")
        return options

    def start(self, step: Step, stdout: int) -> list[subprocess.Popen[bytes]]:
        """Start srun.

        In a batch job it gets a session of its own. When a batch script is killed, Slurm itself
        ends the step, with SIGTERM first, so that the ranks can report how they ended. An srun that
        dies with the script would have the step killed at once, and so would one that gets the
        SIGTERM of scancel --full, which goes to the script's process group.
        """
        prepare = before_exec() if self._here.is_interactive else None
        process = subprocess.Popen(
            self.command(step),
            env=self._environ(step),
            stdin=step.stdin,
            stdout=stdout,
            start_new_session=not self._here.is_interactive,
            preexec_fn=prepare,  # noqa: PLW1509 -- it calls prctl and signal alone
        )
        return [process]

    def _environ(self, step: Step) -> dict[str, str]:
        """The ranks' environment.

        With --gpus-per-task or --ntasks-per-gpu Slurm shows each rank one GPU. NCCL then has no
        short way to the others, and the one monitor of a node sees no other. Who asked for a
        binding keeps it, and so does a command of the user's own, which may count on it.
        """
        environ = {k: v for k, v in step.environ.items() if k not in _OF_OUTPUT}
        if "SLURM_NTASKS_PER_NODE" in environ and step.layout.num_tasks == step.layout.num_nodes:
            environ["SLURM_NTASKS_PER_NODE"] = "1"  # of another srun warns; Lightning needs it
        if step.is_own_command or environ.get("SLURM_GPU_BIND"):
            return environ
        environ.pop("SLURM_GPUS_PER_TASK", None)
        environ.pop("SLURM_NTASKS_PER_GPU", None)
        if "gpu" in environ.get("SLURM_TRES_PER_TASK", ""):
            del environ["SLURM_TRES_PER_TASK"]
        bind = environ.get("SLURM_TRES_BIND", "")
        if bind.startswith(("gres/gpu:per_task:", "gres/gpu:single:")):
            del environ["SLURM_TRES_BIND"]
        return environ

    def end(self, step_id: int | None) -> bool:
        """Let Slurm signal the ranks.

        An srun that gets SIGTERM has its tasks killed at once, and what they trained since the last
        checkpoint is lost.
        """
        if step_id is None:
            return False
        complaint = self._signal(step_id, signal.SIGTERM)
        return not complaint or _DELIVERED in complaint

    def ask_for_reports(self, step_id: int | None) -> None:
        """By a signal to the agents, which hand it on to the node's monitor."""
        if step_id is not None:
            self._signal(step_id, ASK)

    def _signal(self, step_id: int, signum: int) -> str:
        """Signal the tasks of a step, on every node; Slurm's complaint, empty if none."""
        step = f"{self._slurm.job_id}.{step_id}"
        return self._slurm.try_to("scancel", f"--signal={int(signum)}", step, timeout_s=10)

    def kill(self, step_id: int | None) -> None:
        """Kill this attempt's step alone, not a shell's own or another script's.

        scancel reaches the nodes that answer at once, and then waits long for one that is gone.
        """
        steps = self._steps(step_id)
        if steps:
            self._slurm.try_to("scancel", "--signal=KILL", *steps, timeout_s=30)

    def _steps(self, step_id: int | None) -> list[str]:
        """Name the step; if no rank came up to report its number, find it by its program.

        Not in a shell's allocation, where a step of that program may be another script's.
        """
        if step_id is not None:
            return [f"{self._slurm.job_id}.{step_id}"]
        return [] if self._here.is_interactive else self._slurm.steps("launcher.sh")

    def lost_of(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        """Those that answer neither Slurm nor us; this one does."""
        return self._slurm.lost_of([node for node in nodes if node != self._here.node])

    def dropped(self, nodes: Sequence[str]) -> list[str]:
        """Those that Slurm took out of a job with --no-kill."""
        return self._slurm.dropped(nodes)

    def is_back(self, node: str) -> bool:
        """Whether it answers, is still the job's, and runs a step."""
        if self.lost(node) or self.dropped([node]):
            return False
        words = self.probe_words(node, ["true"], is_restart=True)
        return not self._slurm.try_to(*words)

    def probe_words(self, node: str, words: Sequence[str], *, is_restart: bool) -> list[str]:
        """A step of one task on another node."""
        if node == self._here.node:
            return list(words)
        limit_s = _PROBE_AGAIN_S if is_restart else _PROBE_S
        return ["timeout", "-k", "5", str(limit_s), *self._beside([node], words)]

    def _beside(self, nodes: Sequence[str], words: Sequence[str]) -> list[str]:
        """A step of one task on each of these nodes, beside whatever runs there.

        It asks for nothing that the job's variables ask for: that belongs to the ranks, and is more
        than these nodes have. The words may begin with further options.
        """
        unset = [f"--unset={name}" for name in slurm.requested(self._here.environ)]
        return [
            *("env", *unset, "srun", "--overlap", "--mpi=none", "--gres=none", "--mem=0"),
            *(f"--nodes={len(nodes)}", f"--ntasks={len(nodes)}", f"--nodelist={','.join(nodes)}"),
            *("--export=ALL", *words),
        ]

    def first_node(self, nodes: Sequence[str]) -> str:
        """The first in Slurm's own order; a host file of the user's has an order of its own."""
        environ = self._here.environ
        if environ.get("SLURM_DISTRIBUTION") == "arbitrary":
            with suppress(OSError, ValueError, IndexError):
                return read_text(environ.get("SLURM_HOSTFILE", "")).splitlines()[0].strip()
        return nodes[0]

    def address(self, node: str) -> Address | None:
        """Slurm's own address of it."""
        address = scontrol.field(self._slurm.node_info(node) or "", "NodeAddr")
        return Address(address, f"Slurm's NodeAddr of {node}") if address else None
