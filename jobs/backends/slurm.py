"""Slurm as one job sees it: its variables and its programs, by their names."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from jobs.backends.scontrol import field, local_time, utc_time
from jobs.messages import UsageError, info
from jobs.programs import which
from rundir import secrets

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

INTERACTIVE_STEP = "4294967290"
"""slurm.h: SLURM_INTERACTIVE_STEP, in which salloc starts its shell where a site has it so."""
PYXIS = "SLURM_SPANK__SLURM_SPANK_OPTION_pyxis_container_"
"""Where Pyxis keeps an option of sbatch's for the steps of the job: this, and the option's name."""
_MAX_AT_ONCE = 64
"""Nodes whose ports are tried at the same time."""
_ANSWER_S = 1.5
"""How long a port may take to answer, twice: the kernel does, however busy its node is, and it asks
again for what was lost after a second."""

_NUMBERS = (
    "SLURM_JOB_ID SLURM_JOB_NUM_NODES SLURM_NNODES SLURM_NTASKS SLURM_NTASKS_PER_NODE"
    " SLURM_CPUS_PER_TASK SLURM_CPUS_ON_NODE"
)
_REQUESTS = (
    "TresPerJob=SLURM_GPUS TresPerNode=SLURM_GPUS_PER_NODE TresPerSocket=SLURM_GPUS_PER_SOCKET"
    " TresPerTask=SLURM_GPUS_PER_TASK TresPerTask=SLURM_TRES_PER_TASK"
    " CpusPerTres=SLURM_CPUS_PER_GPU MemPerTres=SLURM_MEM_PER_GPU MinMemoryCPU=SLURM_MEM_PER_CPU"
    " MinMemoryNode=SLURM_MEM_PER_NODE"
)
"""A field of the job, and the variable that Slurm sets where the job has it."""
_ORPHANED = """
trap '' TERM INT HUP USR1
while read -r word; do
    if [[ $word == done ]]; then exit; fi
    steps+=" $word"
done
: "${steps:=$(squeue --noheader --steps --jobs="$1" --format='%i %j' |
    awk '$2 == "launcher.sh" { print $1 }')}"
if [[ $steps ]]; then timeout -k 1 30 scancel --signal=TERM $steps; fi
"""


class Slurm:
    """Slurm as one job sees it: its variables, and its programs.

    Args:
        environ: The job's environment; the programs get it without the user's own filters.

    """

    def __init__(self, environ: Mapping[str, str]) -> None:
        self.environ = environ
        array = environ.get("SLURM_ARRAY_JOB_ID", "")
        self.array_task = environ.get("SLURM_ARRAY_TASK_ID", "")
        self.job_id = environ.get("SLURM_JOB_ID", "")
        """Empty: there is no job."""
        self.name = f"{array}_{self.array_task}" if array and self.array_task else self.job_id
        """The job as scontrol takes it: an array's last task has the id of the whole array."""
        self.restart_count = number(environ, "SLURM_RESTART_COUNT")
        self.num_nodes = number(environ, "SLURM_JOB_NUM_NODES", "SLURM_NNODES") or 1
        if not self.job_id:
            self.num_nodes = 1
        self.step = environ.get("SLURM_STEP_ID", "")
        """The step in which this runs; empty in a batch script."""
        self.task = environ.get("SLURM_PROCID") or "0"
        # sbatch alone says BATCH; srun --pty and salloc leave it out.
        self.is_batch = environ.get("ENVIRONMENT") == "BATCH"
        self.node = environ.get("SLURMD_NODENAME", "")
        self.submit_dir = environ.get("SLURM_SUBMIT_DIR", "")
        self.gpus_on_node = environ.get("SLURM_GPUS_ON_NODE", "")
        self.has_gpus = bool(self.gpus_on_node or environ.get("SLURM_JOB_GPUS"))
        self.cpus_per_task = number(environ, "SLURM_CPUS_PER_TASK")
        """0 if the job does not ask."""
        self._usual_port = ""
        self.is_traced = False
        """Whether calls of programs are reported, for DEBUG=1."""
        self._client_environ = {
            name: value
            for name, value in environ.items()
            if not name.startswith("SQUEUE_") and name != "SLURM_TIME_FORMAT"
        }

    # ---- what the job asks for ---------------------------------------------------------------

    def check(self) -> None:
        """Check that the variables that we use are as Slurm sets them. Raises UsageError.

        Part of a job's environment, copied into a shell, is refused at once.
        """
        for name in _NUMBERS.split():
            value = self.environ.get(name) or "1"
            if not re.fullmatch("[1-9][0-9]{0,9}", value):
                raise UsageError(
                    f"{name} must be a whole number from 1 on, as Slurm sets it",
                    f"'{value}'",
                    "start with sbatch, salloc or srun, or unset SLURM_JOB_ID to run without Slurm",
                )
        size = self.environ.get("SLURM_HET_SIZE")
        if size:
            raise UsageError(
                "a heterogeneous job has several allocations, and ranks can use one",
                size,
                "submit one, without a : between its options",
            )

    @property
    def is_interactive(self) -> bool:
        """Whether this is a shell of salloc or srun --pty: other steps may run beside ours."""
        is_shell = not self.is_batch or bool(self.environ.get("SLURM_PTY_PORT"))
        return bool(self.job_id) and is_shell

    @property
    def num_tasks(self) -> int:
        """Tasks of the step.

        Inside a step (srun --pty) the count is that of the shell's own step, but for the step in
        which salloc starts its shell where a site has it so.
        """
        is_own = self.step in ("", INTERACTIVE_STEP)
        num_tasks = number(self.environ, "SLURM_NTASKS") if is_own else 0
        return num_tasks or self.num_nodes * (number(self.environ, "SLURM_NTASKS_PER_NODE") or 1)

    @property
    def num_tasks_in_place(self) -> int:
        """Tasks of this node, where no client of Slurm's can start a step."""
        return number(self.environ, "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE") or 1

    @property
    def has_plain_gpus(self) -> bool:
        """Whether the job asks for GPUs on each node and says nothing of tasks.

        Of a number for the whole job each node may have another share.
        """
        names = ("SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_STEP_ID")
        if any(self.environ.get(name) for name in names):
            return False
        if not re.fullmatch("[2-9]|[1-9][0-9]{1,2}", self.gpus_on_node):
            return False
        whole = number(self.environ, "SLURM_GPUS")
        return self.num_nodes == 1 or whole in (0, self.num_nodes * int(self.gpus_on_node))

    @property
    def cpus_on_node(self) -> int:
        """CPUs of a node of the job; 0 if Slurm does not say.

        salloc's shell on a login node has only the list of its nodes, such as 72(x2),36.
        """
        names = ("SLURM_CPUS_ON_NODE", "SLURM_JOB_CPUS_PER_NODE")
        listed = next(filter(None, map(self.environ.get, names)), "")
        found = re.match("[0-9]{1,9}", listed)
        return int(found[0]) if found else 0

    # ---- the programs ------------------------------------------------------------------------

    def is_installed(self) -> bool:
        """Whether its programs are here; they may still find no controller."""
        return all(which(name, self.environ) for name in ("srun", "scontrol"))

    def ask(self, *words: str, timeout_s: float = 30) -> str | None:
        """Run one of Slurm's programs; what it printed, None where it failed or did not answer."""
        code, text = self._run(words, timeout_s, subprocess.DEVNULL)
        return text if code == 0 else None

    def try_to(self, *words: str, timeout_s: float = 60) -> str:
        """Run one of Slurm's programs that changes something; its complaint, empty if none."""
        code, text = self._run(words, timeout_s, subprocess.STDOUT)
        return (text.strip() or f"code {code}") if code else ""

    def _run(self, words: Sequence[str], timeout_s: float, stderr: int) -> tuple[int, str]:
        configuration = self.environ.get("SLURM_CONF")
        if configuration and not os.path.exists(configuration):  # Slurm would wait for it: a minute
            return -1, f"no {configuration}"
        try:
            done = subprocess.run(
                words,
                env=self._client_environ,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=stderr,
                timeout=timeout_s,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return -1, str(error)
        if self.is_traced:
            info(f"+ {' '.join(secrets.hide_words(words))}: code {done.returncode}")
        return done.returncode, done.stdout.decode(errors="replace")

    def job_info(self) -> str | None:
        """Ask the controller for this job, twice: under load it may not answer at once."""
        info = self.ask("scontrol", "show", "job", self.name)
        if info is None:
            time.sleep(1)
            info = self.ask("scontrol", "show", "job", self.name)
        return info

    def has_step(self, step: str) -> bool:
        """Whether this job has the step."""
        return self.ask("scontrol", "show", "step", f"{self.job_id}.{step}") is not None

    def hostnames(self, listed: str) -> list[str]:
        """Expand a list of nodes."""
        return (self.ask("scontrol", "show", "hostnames", listed) or "").split()

    def mpi_types(self) -> list[str]:
        """Name what srun's --mpi takes here: a name a line, and versions of PMIx in the last."""
        _, text = self._run(("srun", "--mpi=list"), 30, subprocess.STDOUT)
        found = re.findall(r"^(?:srun: |\s+)\w+$|pmix_v\d+", text, re.MULTILINE)
        return [words.split()[-1] for words in found]

    def node_info(self, node: str) -> str | None:
        """Ask the controller for a node."""
        return self.ask("scontrol", "--oneliner", "show", "node", node, timeout_s=20)

    def node_infos(self, nodes: Sequence[str]) -> dict[str, str]:
        """Ask the controller for many nodes at once: a line for each that it knows."""
        words = ("scontrol", "--oneliner", "show", "node", ",".join(nodes))
        # Its code is bad as soon as it does not know one of them.
        _, text = self._run(words, 20, subprocess.DEVNULL)
        return {field(line, "NodeName"): line for line in text.splitlines()}

    def config(self, name: str) -> str:
        """Read a number of Slurm's configuration; empty if it is not there."""
        text = self.ask("scontrol", "show", "config", timeout_s=20) or ""
        found = re.search(rf"^{name} *= *(\d+)", text, re.MULTILINE)
        return found[1] if found else ""

    def is_listed(self, job: str) -> bool:
        """Whether Slurm still knows a job as waiting, running or completing. In doubt it does."""
        words = ("squeue", "--noheader", f"--jobs={job}", "--format=%T")
        code, text = self._run(words, 30, subprocess.STDOUT)
        return "Invalid job id" not in text if code else bool(text.strip())

    def steps(self, name: str) -> list[str]:
        """Find the running steps of this job by the name of their program."""
        words = ("squeue", "--noheader", "--steps", f"--jobs={self.job_id}", "--format=%i %j")
        rows = (line.split() for line in (self.ask(*words, timeout_s=10) or "").splitlines())
        return [row[0] for row in rows if row[1:] == [name]]

    def end_if_orphaned(self) -> subprocess.Popen[bytes]:
        """Start what ends a step of this job should this process be killed.

        It reads steps, and `done`, from its standard input.
        """
        return subprocess.Popen(
            ["bash", "-c", _ORPHANED, "bash", self.job_id],
            env=self._client_environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    # ---- nodes -------------------------------------------------------------------------------

    def lost_of(self, nodes: Sequence[str]) -> list[tuple[str, str]]:
        """Those of the nodes that answer neither Slurm nor us, and how each is lost.

        By one request and in the time of one: all nodes of a large job may be quiet at once, as
        where its file system stalls. Where the controller does not answer either, it may be this
        machine that lost its network: then no node is lost.
        """
        infos = self.node_infos(nodes) if nodes else {}
        asked = [(node, infos[node], self._port(infos[node])) for node in nodes if node in infos]
        if not asked:
            return []
        from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415 -- seldom needed

        with ThreadPoolExecutor(min(len(asked), _MAX_AT_ONCE)) as pool:
            hows = list(pool.map(lambda one: _how_lost(*one), asked))
        return [(node, how) for (node, _, _), how in zip(asked, hows) if how]

    def _port(self, info: str) -> str:
        """Where slurmd listens on a node; Slurm leaves out the port that all have."""
        port = field(info, "Port")
        if port not in ("", "0"):
            return port
        # Of several the first is as good.
        self._usual_port = self._usual_port or self.config("SlurmdPort") or "6818"
        return self._usual_port

    def rebooted(self, node: str, since: str) -> str | None:
        """Whether a node was started anew since that time (UTC, ISO 8601): how, or None."""
        started = field(self.node_info(node) or "", "BootTime")
        booted_s, since_s = local_time(started), utc_time(since)
        if booted_s is None or since_s is None or booted_s <= since_s:
            return None
        return f"it was started anew at {started}"

    def dropped(self, nodes: Iterable[str]) -> list[str]:
        """Those of the nodes that the job no longer has.

        With --no-kill Slurm takes a node out of the job that it does not reach for a while, and
        leaves it out when it is back.
        """
        listed = field(self.job_info() or "", "NodeList")
        kept = self.hostnames(listed) if listed else []
        return [node for node in nodes if node not in kept] if kept else []


def _how_lost(node: str, info: str, port: str) -> str | None:
    address = field(info, "NodeAddr") or node
    for _ in range(2):
        began_s = time.monotonic()
        # slurmd's port answers at once where srun could start something.
        if _answers(address, int(port)):
            return None
        time.sleep(max(0.0, began_s + _ANSWER_S - time.monotonic()))
    state = field(info, "State") or "unknown"
    return f"it does not answer on port {port}; Slurm's state of it is {state}"


def _answers(address: str, port: int) -> bool:
    try:
        with socket.create_connection((address, port), timeout=_ANSWER_S):
            return True
    except OSError:
        return False


# ---- its variables -----------------------------------------------------------------------------


def forget_outer_job(environ: dict[str, str], *, is_batch_script: bool) -> None:
    """Remove the variables of the job or shell in which this job was submitted.

    sbatch hands a job its caller's variables, and Slurm overwrites only those that the new job has.
    """
    for kind in ("SLURM_CPU_BIND", "SLURM_MEM_BIND"):
        if f"{kind}_TYPE" in environ:  # set for a step alone: one without is the user's wish
            _drop(environ, [kind], f"{kind}_")
    if not environ.get("SLURM_JOB_ID") or not is_batch_script:
        return
    _drop(environ, ["SLURM_STEPID"], "SLURM_STEP_", "SLURM_PTY_")
    job = Slurm(environ).ask("scontrol", "--oneliner", "show", "job", environ["SLURM_JOB_ID"])
    lines = (job or "").splitlines()
    if not lines:
        return
    if " ArrayJobId=" not in lines[-1]:
        _drop(environ, [], "SLURM_ARRAY_")
    pairs = (pair.split("=") for pair in _REQUESTS.split())
    _drop(environ, [name for key, name in pairs if f" {key}=" not in lines[-1]])


def _drop(environ: dict[str, str], names: Iterable[str], *prefixes: str) -> None:
    for name in [*names, *(n for n in environ if prefixes and n.startswith(prefixes))]:
        environ.pop(name, None)


def number(environ: Mapping[str, str], *names: str) -> int:
    """The first of these variables that has a number; 0 if none has."""
    for name in names:
        value = environ.get(name, "")
        if re.fullmatch("[0-9]{1,10}", value):
            return int(value)
    return 0


def requested(environ: Mapping[str, str]) -> list[str]:
    """Name the variables by which a step would ask for all that the job has, on all its nodes."""
    asks = re.compile(
        "(SLURM|SRUN)_(GPUS?|NTASKS|CPUS?|TRES|MEM)_|SLURM_(GPUS|NTASKS|STEP_GRES|LABELIO)$"
    )
    return [name for name in environ if asks.match(name)]
