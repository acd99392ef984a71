"""What all tests share: the virtual cluster, and a last line that counts what was skipped."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Mapping

CLUSTER_SCRIPT = Path(__file__).parent / "cluster" / "cluster.sh"
CLUSTER_PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "ip", "nsenter", "unshare")
ENDED_STATES = frozenset(
    (
        "BOOT_FAIL",
        "CANCELLED",
        "COMPLETED",
        "DEADLINE",
        "FAILED",
        "NODE_FAIL",
        "PREEMPTED",
        "TIMEOUT",
    )
)
POLL_S = 0.2
MAX_WHY = 600
"""Characters of a failure that are reported when it happens."""
SHARED_CLUSTER = "the shared cluster"
THINGS = {
    "examples/test_lightning.py": SHARED_CLUSTER,
    "examples/test_mpi.py": SHARED_CLUSTER,
    "examples/test_on_two_nodes.py": SHARED_CLUSTER,
    "examples/test_ray.py": SHARED_CLUSTER,
    "examples/test_torchtitan.py::test_four_ranks_on_two_nodes": SHARED_CLUSTER,
    "jobs/test_layouts_on_slurm.py": SHARED_CLUSTER,
    "jobs/test_preflight_on_slurm.py": SHARED_CLUSTER,
    "jobs/test_recovery.py": SHARED_CLUSTER,
    "jobs/test_slurm.py": SHARED_CLUSTER,
    "jobs/test_training.py": SHARED_CLUSTER,
    "jobs/test_watchdog.py::test_a_node_that_works_is_asked_and_prevents_a_verdict": SHARED_CLUSTER,
    "monitor/runs/test_why_on_slurm.py": SHARED_CLUSTER,
    "benchmarks/test_scaling.py": SHARED_CLUSTER,
    "faults": "a cluster of its own",
    "container": "Docker",
}
"""What the tests of a folder or file share, or a test, so that no two of them may run at once."""
NEEDS_NONE = "[in place"
"""An example's layout without Slurm."""
LONGEST = (
    SHARED_CLUSTER,
    "a cluster of its own",
    "matrix/test_matrix.py",
    "Docker",
    "examples/test_in_place.py",
    "benchmarks/test_bench.py",
)
"""What takes minutes in one process begins first: what is left fills the others' time."""


class JobEnd(NamedTuple):
    """How a job ended, in Slurm's words: state, exit code, and the signal or 0."""

    state: str
    exit_code: int
    signal: int


def on_busy_machine(limit_s: float) -> float:
    """Give a limit, in seconds on a quiet machine, as it is on one that is as busy as this one.

    Each process that waits for a core makes all of them slower.
    """
    return limit_s * (1 + os.getloadavg()[0] / (os.cpu_count() or 1))


class Cluster:
    """A virtual cluster, driven through `tests/cluster/cluster.sh`.

    `env` is the environment with which Slurm's commands reach it: this process's own, without
    the variables of a surrounding job, and without those that make each of a job's processes
    measure its coverage, which takes a quarter of their time.
    """

    def __init__(self, settings: Mapping[str, str] | None = None) -> None:
        foreign = ("SLURM", "SBATCH", "COVERAGE_")
        self.env = {k: v for k, v in os.environ.items() if not k.startswith(foreign)}
        self.env |= {"DDP_PREFLIGHT": "0"}  # its own tests ask for it: it takes seconds
        self.env |= settings or {}

    def script(self, *args: str, timeout: float = 150) -> subprocess.CompletedProcess[str]:
        """Run `cluster.sh ARGS`; never raises for its exit code."""
        return self.run([CLUSTER_SCRIPT, *args], timeout=timeout)

    def up(self, *nodes: str) -> None:
        """Start or mend the cluster; fail the test if that does not work."""
        result = self.script("up", *nodes)
        assert result.returncode == 0, result.stderr
        line = self.script("env").stdout.strip()
        self.env["SLURM_CONF"] = line.removeprefix("export SLURM_CONF=")

    @property
    def nodes(self) -> list[str]:
        """The names of the nodes, in order."""
        return [line.split()[0] for line in self.script("status").stdout.splitlines()[1:]]

    def node_state(self, node: str) -> str:
        """Slurm's word for the node's state, such as `idle` or `down*`."""
        return self.run(["sinfo", "-h", "-N", "-n", node, "-o", "%T"]).stdout.strip()

    def run(
        self,
        command: list[str | Path],
        *,
        timeout: float = 60,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command on the host with Slurm reachable; `env` is added to the environment."""
        return subprocess.run(
            command,
            timeout=timeout,
            cwd=cwd,
            env=self.env | dict(env or {}),
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )

    def exec(
        self, node: str, *command: str, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a node, outside any job."""
        return self.script("exec", node, *command, timeout=timeout)

    def submit(
        self,
        args: list[str | Path],
        *,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> int:
        """`sbatch ARGS`; the job's id."""
        result = self.run(["sbatch", "--parsable", *args], cwd=cwd, env=env)
        assert result.returncode == 0, result.stderr
        return int(result.stdout.split(";")[0])

    def job(self, job: int) -> dict[str, str]:
        """What `scontrol show job` prints; an ended job stays visible for a day."""
        result = self.run(["scontrol", "show", "job", "-o", str(job)])
        assert result.returncode == 0, result.stderr
        fields = re.findall(r"(\S+?)=(\S*)", result.stdout.splitlines()[0])
        return dict(reversed(fields))  # the first of a name counts: then come the user's words

    def wait(self, job: int, timeout: float = 120) -> JobEnd:
        """Wait until the job has ended and its nodes are clean; `timeout` in seconds."""
        self.until(lambda: self.job(job)["JobState"] in ENDED_STATES, timeout, f"job {job} ended")
        found = self.job(job)
        exit_code, signal = found["ExitCode"].split(":")
        return JobEnd(found["JobState"], int(exit_code), int(signal))

    def wait_running(self, job: int, timeout: float = 60) -> None:
        """Wait until the job runs; `timeout` in seconds."""
        self.until(lambda: self.job(job)["JobState"] == "RUNNING", timeout, f"job {job} runs")

    @staticmethod
    def until(condition: Callable[[], bool], timeout: float, what: str) -> None:
        """Poll until the condition holds; fail the test after `timeout` seconds of patience."""
        began = time.monotonic()
        while not condition():
            waited = time.monotonic() - began
            assert waited < on_busy_machine(timeout), f"not within {waited:.0f} s: {what}"
            time.sleep(POLL_S)

    def processes(self, node: str, token: str) -> list[tuple[int, str]]:
        """Living processes of a node with `token` in command line or environment: pid, command.

        They are found by the node's network, so that one that left its parents is found, too.
        """
        netns = self._netns(node)
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if (path / "ns/net").stat().st_ino != netns:
                    continue
                command = (path / "cmdline").read_bytes()
                if token.encode() in command + b"\0" + (path / "environ").read_bytes():
                    found.append((int(path.name), command.replace(b"\0", b" ").decode().strip()))
            except (FileNotFoundError, PermissionError, ProcessLookupError):
                continue  # ended while we read it, or not ours to read
        return found

    @staticmethod
    def _netns(node: str) -> int:
        return Path(f"/run/netns/ddp-{node}").stat().st_ino


def _why_no_cluster() -> str | None:
    if not sys.platform.startswith("linux"):
        return "the virtual cluster needs Linux"
    if os.geteuid() != 0:
        return "the virtual cluster needs root"
    missing = [program for program in CLUSTER_PROGRAMS if not shutil.which(program)]
    if missing:
        return f"the virtual cluster needs {', '.join(missing)}: run tests/provision.sh"
    if subprocess.run(["unshare", "--net", "true"], capture_output=True, check=False).returncode:
        return "the virtual cluster needs the right to make network namespaces"
    return None


@pytest.fixture(scope="session")
def cluster_at() -> Callable[[Mapping[str, str]], Cluster]:
    """Build a cluster of one's own from DDP_CLUSTER_… settings, not yet up."""
    reason = _why_no_cluster()
    if reason:
        pytest.skip(reason)
    return Cluster


@pytest.fixture(scope="session")
def cluster(cluster_at: Callable[[Mapping[str, str]], Cluster]) -> Generator[Cluster]:
    """The shared cluster of at least two nodes; one that was already up is mended and left up."""
    shared = cluster_at({})
    was_up = shared.script("status").returncode == 0
    shared.up(str(max(2, len(shared.nodes) if was_up else 0)))
    yield shared
    if not was_up:
        assert shared.script("down").returncode == 0


def own_cluster(
    cluster_at: Callable[[Mapping[str, str]], Cluster],
    name: str,
    number: int,
    *,
    nodes: int,
    **settings: str,
) -> Generator[Cluster]:
    """Yield a cluster beside the shared one, which may be broken; nodes are `name` and a digit.

    `number` is the third of its addresses, and with it its ports. `settings` are those behind
    DDP_CLUSTER_. Not in tmp_path, which is closed to others: munged wants its socket reachable.
    """
    own = cluster_at(
        {
            "DDP_CLUSTER_DIR": f"/var/tmp/ddp-cluster-{name}",
            "DDP_CLUSTER_PREFIX": name,
            "DDP_CLUSTER_SUBNET": f"10.213.{number}",
        }
        | {f"DDP_CLUSTER_{key}": value for key, value in settings.items()}
    )
    own.up(str(nodes))
    yield own
    assert own.script("down").returncode == 0


def patient(folder: Path) -> str:
    """Write, for EXTRA, that a cluster's nodes may be silent for minutes."""
    extra = folder / "extra.conf"
    extra.write_text("SlurmdTimeout=300\n")
    return str(extra)


@pytest.fixture
def patience() -> Callable[[float], float]:
    """Give `on_busy_machine`, for a test's own limits."""
    return on_busy_machine


def thing_of(nodeid: str) -> str:
    """Name what this test shares with others; its own file if that is nothing."""
    test = nodeid.removeprefix("tests/").partition("[")[0]
    file = test.partition("::")[0]
    if NEEDS_NONE in nodeid:
        return file
    return THINGS.get(file.split("/")[0]) or THINGS.get(test) or THINGS.get(file, file)


def pytest_configure() -> None:
    """Let what is tested hear signals, also under nohup or in the background of a script.

    A program that is started inherits that a signal is ignored, and not that it is handled.
    """
    for number in (signal.SIGINT, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, lambda *_: None)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest; refuse a test that would not wait for the shared cluster."""
    order = {thing: place for place, thing in enumerate(LONGEST)}
    items.sort(key=lambda item: order.get(thing_of(item.nodeid), len(order)))
    for item in items:
        if (
            "cluster" in getattr(item, "fixturenames", ())
            and thing_of(item.nodeid) != SHARED_CLUSTER
        ):
            raise pytest.UsageError(
                f"{item.nodeid} uses the shared cluster: add its file to THINGS"
            )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Keep what shares a thing of the machine in one process: `make test` runs three.

    Marks would say it where the tests are, but xdist's own groups are lost under pytest 9.2.
    """
    from xdist.scheduler import LoadScopeScheduling  # noqa: PLC0415 -- only with xdist at hand

    class ByThing(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return thing_of(nodeid)

    return ByThing(config, log)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Name a failure when it happens, not only at the end of a long run."""
    if report.failed and not os.environ.get("PYTEST_XDIST_WORKER"):
        crash = getattr(report.longrepr, "reprcrash", None)
        why = f"{crash.path}:{crash.lineno}: {crash.message}" if crash else str(report.longrepr)
        took = f"{report.when} failed after {report.duration:.0f} s"
        line = f"{report.nodeid}: {took}: {' '.join(why.split())[:MAX_WHY]}"
        print(f"\n{line}", file=sys.__stderr__, flush=True)


def _skip_line(reports: list[pytest.TestReport]) -> str:
    def reason(report: pytest.TestReport) -> str:
        where = report.longrepr
        text = where[2] if isinstance(where, tuple) else str(where)
        return text.removeprefix("Skipped: ")

    counted = Counter(reason(report) for report in reports).most_common()
    tests = "test" if len(reports) == 1 else "tests"
    return f"{len(reports)} {tests} skipped here: " + ", ".join(f"{r} x{n}" for r, n in counted)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter,
) -> Generator[None, None, None]:
    """Count the skipped tests on the last line before pytest's own closing line."""
    yield
    skipped = terminalreporter.getreports("skipped")
    if skipped:
        terminalreporter.write_line(_skip_line(skipped))
